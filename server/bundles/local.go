package bundles

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"regent/engine/policy"
	"regent/engine/tarball"
)

const (
	// localEvery is how often the disk is looked at. It is polled, since notifications of the system do not tell of what happens on
	// mounted volumes and network file systems, nor of a link above the folder that is led elsewhere, as Kubernetes does. A change
	// has to have settled between two looks, so that it counts within about half a second.
	localEvery = 250 * time.Millisecond
	// unsettledMax looks in a row may find something written: ten seconds, after which it is no deployment any more.
	unsettledMax = 40
)

// fingerprint is what the disk says of files without their content, by path.
type fingerprint map[string]fs.FileInfo

// same says whether nothing seems to have changed. Which file it is counts too: one that takes another's place may have its size and time.
func (f fingerprint) same(other fingerprint) bool {
	if len(f) != len(other) || f == nil {
		return false
	}
	for name, info := range f {
		was := other[name]
		if was == nil || info.Size() != was.Size() || info.Mode() != was.Mode() || !info.ModTime().Equal(was.ModTime()) || !os.SameFile(info, was) {
			return false
		}
	}
	return true
}

// local is a bundle on this machine's file systems.
type local struct {
	where string
	// survey takes the fingerprint, open reads the bundle.
	survey func() (fingerprint, error)
	open   func() (*tarball.Tree, error)

	seen      fingerprint // at the last look
	known     fingerprint // of what was read last
	err       error       // why that is no bundle
	unsettled int         // looks in a row
}

// fetch reads the bundle when it has changed, and has not changed any more between two looks nor while it was read: half a rule might
// load, and allow what the other half denies.
func (l *local) fetch(_ context.Context, atOnce bool) (*tarball.Tree, error) {
	now, err := l.survey()
	if err != nil {
		l.seen, l.known = nil, nil
		return nil, l.at(err)
	}
	settled := atOnce || now.same(l.seen)
	l.seen = now
	switch {
	case !atOnce && now.same(l.known):
		return nil, l.err
	case !settled:
		return nil, l.wait()
	}
	found, err := l.open()
	if l.seen, _ = l.survey(); !l.seen.same(now) { // what is wrong with it, the next look says
		return nil, l.wait()
	}
	l.known, l.unsettled, l.err = now, 0, nil
	if err != nil {
		l.err = l.at(err)
	}
	return found, l.err
}

// wait says that it is being written, and after a while that this does not end.
func (l *local) wait() error {
	if l.unsettled++; l.unsettled > unsettledMax {
		return &Error{Where: l.where, Err: errors.New("it does not hold still"), Remedy: "write logs and other files elsewhere"}
	}
	return &Error{Where: l.where, Err: ErrUnsettled, Remedy: "it counts as soon as it holds still"}
}

// at places an error. What the system says of files is no secret.
func (l *local) at(err error) error {
	if found := own(err); found != nil {
		return &Error{Where: l.where, Err: found.Err, Remedy: found.Remedy}
	}
	var of *fs.PathError
	if errors.As(err, &of) && of.Path != l.where {
		return &Error{Where: path.Join(l.where, of.Path), Err: of.Err, Remedy: "see whether it is there, and may be read"}
	} else if of != nil {
		err = of.Err
	}
	return &Error{Where: l.where, Err: err, Remedy: "see whether it is there, and may be read"}
}

// newFile is a tarball on disk.
func newFile(name string) *local {
	l := &local{where: name}
	l.survey = func() (fingerprint, error) {
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			return nil, wrong(ErrNotTarball, "name a tar.gz; a folder is given by folder", "it is no regular file")
		}
		if info.Size() > policy.MaxBundleBytes {
			return nil, wrong(ErrTooLarge, "move data out of it", "it is larger than %d bytes", policy.MaxBundleBytes)
		}
		return fingerprint{name: info}, nil
	}
	l.open = func() (*tarball.Tree, error) {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // it was only read
		return tarball.Read(file, most)
	}
	return l
}

// newFolder is a bundle whose files lie in a folder. The folder is opened anew for each look, as its name may be a link that is led
// elsewhere; what lies in it is only read within it.
func newFolder(name string) *local {
	l := &local{where: name}
	l.survey = func() (fingerprint, error) {
		found := fingerprint{}
		return found, inFolder(name, func(_ *os.Root, path string, info fs.FileInfo) error {
			if found[path] = info; len(found) > most.Files {
				return wrong(ErrTooLarge, "move what is no policy out of it", "it has more than %d files", most.Files)
			}
			return nil
		})
	}
	l.open = func() (*tarball.Tree, error) {
		found := tarball.Gather(most)
		err := inFolder(name, func(root *os.Root, path string, _ fs.FileInfo) error {
			file, err := root.Open(path)
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }() // it was only read
			return found.Add(path, file)
		})
		if err != nil {
			return nil, err
		}
		return found.Tree()
	}
	return l
}

// inFolder visits each file of a bundle's folder.
func inFolder(name string, visit func(root *os.Root, path string, info fs.FileInfo) error) error {
	root, err := os.OpenRoot(name)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // it was only read
	return (&walk{root, visit}).folder(".", 0)
}

// walk goes through a folder.
type walk struct {
	root  *os.Root
	visit func(root *os.Root, path string, info fs.FileInfo) error
}

func (w *walk) folder(name string, depth int) error {
	if depth > most.Depth { // a link may lead to a folder that it lies in
		return wrong(ErrEntry, "see whether a link leads to a folder that it lies in", "%s lies below more than %d folders", name, most.Depth)
	}
	entries, err := fs.ReadDir(w.root.FS(), name)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		below := path.Join(name, entry.Name())
		if isHidden(below) {
			continue
		}
		if err := w.entry(below, entry, depth); err != nil {
			return err
		}
	}
	return nil
}

// entry visits a file, or what lies in a folder. What a link leads to is taken if it lies within the root.
func (w *walk) entry(name string, entry fs.DirEntry, depth int) error {
	isLink := entry.Type()&fs.ModeSymlink != 0
	info, err := w.root.Stat(name)
	switch {
	case err != nil && isLink && !errors.Is(err, fs.ErrNotExist):
		to, _ := w.root.Readlink(name) // the error says enough without it
		return wrong(ErrEntry, "put the file itself there", "%s is a link to %q, which cannot be followed within the folder", name, to)
	case err != nil:
		return err
	case info.IsDir():
		if isLink && !w.leadsAside(name) {
			return wrong(ErrEntry, "leave the link out", "%s is a link to a folder of the bundle, whose files would be there twice", name)
		}
		return w.folder(name, depth+1)
	case !info.Mode().IsRegular():
		return wrong(ErrEntry, "put it elsewhere", "%s is no regular file", name)
	}
	return w.visit(w.root, name, info)
}

// leadsAside says whether a link leads to what is hidden, and no part of the bundle otherwise: so Kubernetes mounts folders.
func (w *walk) leadsAside(name string) bool {
	to, err := w.root.Readlink(name)
	return err == nil && slices.ContainsFunc(strings.Split(path.Join(path.Dir(name), to), "/"), func(step string) bool {
		return strings.HasPrefix(step, ".") && step != ".." && step != "."
	})
}

// isHidden says whether a path is none of the bundle's, as policy sees it: what version control, editors and mounted volumes keep beside
// the files.
func isHidden(name string) bool {
	return strings.HasPrefix(path.Base(name), ".") && name != ".manifest" && name != ".signatures.json"
}
