package durability

import (
	"context"
	"errors"
	"net/http"
	"strconv"
)

// A Write sets one object to a value, or deletes it: it creates the object if the
// journal knows of none, and otherwise updates it from the revision that the journal
// knows, as its only writer.
type Write struct {
	Collection string // its path
	Object     Object
	Value      string // empty: the object is deleted

	// Send sends the request; nil is API.Do. what is create, update or delete.
	Send func(ctx context.Context, what, method, path string, in, out any) error
}

// Do sends the request, with a note in the journal under the given name before and
// after it. It is an error if the server refuses it, since there is no other writer,
// or gives out a revision twice. It is none if there is no answer: the request may
// have been carried out.
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
