package durability

import (
	"context"
	"errors"
	"net/http"
	"strconv"
)

// A Write sets an object to a value or deletes it, as the only writer of the object. It creates the
// object if the journal has none, and otherwise updates it from the journal's revision.
type Write struct {
	Collection string // its path
	Object     Object
	Value      string // empty: the object is deleted

	// Send sends the request; nil is API.Do. what is create, update or delete.
	Send func(ctx context.Context, what, method, path string, in, out any) error
}

// Do sends the request, and records it in the journal under the given name before and after that.
// It returns an error if the server refuses the request, because there is no other writer, or uses
// a revision twice. It returns nil if there is no answer: the server may have carried out the
// request.
func (w Write) Do(ctx context.Context, a *API, j *Journal, name string) error {
	send := w.Send
	if send == nil {
		send = func(ctx context.Context, _, method, path string, in, out any) error {
			return a.Do(ctx, method, path, in, out)
		}
	}
	known, _ := j.Known(name)
	next := State{Present: w.Value != "", Value: w.Value}
	if !next.Present && !known.Present {
		return nil // there is nothing to delete
	}
	path, object := w.Collection+"/"+w.Object.Metadata.Name, w.Object
	object.Metadata.Annotations = map[string]string{ValueAnnotation: w.Value}
	var answer Object
	var err error
	j.Try(name, next)
	switch {
	case !next.Present:
		err = send(ctx, "delete", http.MethodDelete, path, nil, nil)
	case known.Present:
		object.Metadata.ResourceVersion = strconv.FormatInt(known.Revision, 10)
		err = send(ctx, "update", http.MethodPut, path, object, &answer)
	default:
		err = send(ctx, "create", http.MethodPost, w.Collection, object, &answer)
	}
	switch {
	case errors.Is(err, ErrRefused):
		j.Refused(name)
		return err
	case err != nil:
		return nil
	}
	next.Revision = answer.Revision()
	return j.Acknowledge(name, next)
}
