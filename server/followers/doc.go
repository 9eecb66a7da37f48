// Package followers waits until the informers of this process have seen what is in storage.
//
// No resourceVersion of an informer can be waited for. It changes only with the events of the
// informer's own type, and in a filtered informer only with the events that pass the filter. So
// caughtup.go checks the objects: whether the informer's store has each changed key, at the
// revision in storage or a newer one.
package followers
