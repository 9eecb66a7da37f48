package durability

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// An Event is an event of a watch.
type Event struct {
	Type   string // ADDED, MODIFIED, DELETED or BOOKMARK
	Object Object
}

// ErrExpired means that the server no longer has the revision of a watch: the client has to list
// again.
var ErrExpired = errors.New("the revision of the watch is gone")

// Watch calls each for every event after a revision, bookmarks included, until each returns an
// error, the server ends the watch or ctx ends. The path may have a query. It returns an ErrExpired for a 410, and nil if the
// server ended the watch properly.
func (a *API) Watch(ctx context.Context, path string, revision int64, each func(Event) error) error {
	path, query, _ := strings.Cut(path, "?")
	resp, err := a.read(ctx, fmt.Sprintf("%s?watch=true&allowWatchBookmarks=true&resourceVersion=%d&%s", path, revision, query))
	if Refused(err) == http.StatusGone {
		return fmt.Errorf("%w: %w", ErrExpired, err)
	} else if err != nil {
		return err
	}
	defer resp.Body.Close()
	in := bufio.NewScanner(resp.Body)
	in.Buffer(nil, 4<<20)
	for in.Scan() {
		var event struct {
			Type   string
			Object json.RawMessage
		}
		if err := json.Unmarshal(in.Bytes(), &event); err != nil {
			return fmt.Errorf("watch %s: %w", path, err)
		}
		if event.Type == "ERROR" {
			var status struct {
				Code    int
				Message string
			}
			if err := json.Unmarshal(event.Object, &status); err != nil {
				return fmt.Errorf("watch %s: %w", path, err)
			}
			if status.Code == http.StatusGone {
				return fmt.Errorf("watch %s: %w: %s", path, ErrExpired, status.Message)
			}
			return fmt.Errorf("watch %s: %d %s", path, status.Code, status.Message)
		}
		one := Event{Type: event.Type}
		if err := json.Unmarshal(event.Object, &one.Object); err != nil {
			return fmt.Errorf("watch %s: %w", path, err)
		}
		if err := each(one); err != nil {
			return err
		}
	}
	return in.Err()
}
