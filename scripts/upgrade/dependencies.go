package main

import "context"

// ourRequires are the modules that the repository's go.mod files require directly, and the
// newest version that one of them has.
func ourRequires(ctx context.Context) (map[string]string, error) {
	files, err := goMods(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, file := range files {
		mod, err := readGoMod(ctx, file)
		if err != nil {
			return nil, err
		}
		for _, r := range mod.Require {
			if !r.Indirect {
				all[r.Path] = newer(r.Version, all[r.Path])
			}
		}
	}
	return all, nil
}

// dependencies are the versions that upstream requires of the modules that Karve requires too.
func dependencies(r *release, ours map[string]string) facts {
	all := facts{}
	for path := range ours {
		if version, ok := r.requires[path]; ok && version != "v0.0.0" {
			all[path] = version
		}
	}
	return all
}
