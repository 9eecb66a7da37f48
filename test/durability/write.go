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
}

// Do sends the request, and records it in the journal under the given name before and after that.
// It returns an error if the server refuses the request, because there is no other writer, or uses
// a revision twice. It returns nil if there is no answer: the server may have carried out the
// request.
func (w Write) Do(ctx context.Context, a *API, j *Journal, name string) error {
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
		err = a.Do(ctx, http.MethodDelete, path, nil, nil)
	case known.Present:
		object.Metadata.ResourceVersion = strconv.FormatInt(known.Revision, 10)
		err = a.Do(ctx, http.MethodPut, path, object, &answer)
	default:
		err = a.Do(ctx, http.MethodPost, w.Collection, object, &answer)
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
