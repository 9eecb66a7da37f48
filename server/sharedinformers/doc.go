// Package sharedinformers lets the API server, the controllers and the scheduler of one
// process use the same informers.
//
//   - share.go puts the informer of one factory into another one.
//   - caughtup.go waits until informers have seen what is in storage.
//
// A shared informer has a resourceVersion, but that cannot be waited for: it changes with the
// events of its own type only, and that of a filtered informer with those that pass. So
// caughtup.go asks for the objects: whether the informer's store has each key that has changed
// as it is in storage, or newer.
package sharedinformers
