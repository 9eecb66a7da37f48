// Package sharedinformers lets the API server, the controllers and the scheduler of one
// process use the same informers.
//
//   - share.go puts the informer of one factory into another one.
//   - handlermux.go serves many event handlers with one handler of upstream's.
//   - caughtup.go waits until informers have seen what is in storage.
package sharedinformers
