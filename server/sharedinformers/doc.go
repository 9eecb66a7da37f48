// Package sharedinformers lets the API server, the controllers and the scheduler of one
// process use the same informers.
//
//   - share.go puts the informer of one factory into another one.
//   - caughtup.go waits until informers have seen what is in storage.
//
// A shared informer has a resourceVersion, but that cannot be waited for. It changes only with
// the events of the informer's own type, and in a filtered informer only with the events that
// pass the filter. So caughtup.go checks the objects: whether the informer's store has each
// changed key, at the revision in storage or a newer one.
package sharedinformers
