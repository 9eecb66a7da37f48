// Package sharedinformers lets the API server, the controllers and the scheduler of one
// process use the same informers.
package sharedinformers
