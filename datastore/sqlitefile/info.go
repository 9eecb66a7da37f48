package sqlitefile

// Info is what a database says of itself without a scan of all its rows.
type Info struct {
	Path          string `json:"path"`
	SchemaVersion int64  `json:"schemaVersion"`
	Revision      int64  `json:"revision"`
	Bytes         int64  `json:"bytes"`    // of the file
	WALBytes      int64  `json:"walBytes"` // of the WAL beside it
}

// ReadInfo reads the figures of the engine's database at path that need no scan. It refuses what
// a start would refuse for its header: [ErrNewerSchema], [ErrForeign], [ErrCorrupt]. While a
// server uses the database, the error is [ErrBusy].
func ReadInfo(path string) (*Info, error) {
	out := &Info{Path: path}
	err := View(path, func(c *Connection) error {
		metas, err := c.Metas()
		if err != nil {
			return Explain(path, err)
		}
		last, err := c.Number("SELECT ifnull(max(id), 0) FROM log")
		if err != nil {
			return Explain(path, err)
		}
		if out.SchemaVersion, err = c.Number("PRAGMA user_version"); err != nil {
			return Explain(path, err)
		}
		out.Revision = metas.Revision(last)
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.Bytes, out.WALBytes = Size(path), Size(path+"-wal")
	return out, nil
}

// Err returns [ErrNewerSchema] for a database that this release cannot open, or nil.
func (l *Info) Err() error {
	if l.SchemaVersion > SchemaVersion {
		return newerSchema(l.Path, l.SchemaVersion)
	}
	return nil
}
