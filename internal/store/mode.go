package store

// This file knows the two kinds of store. One has a log of its own: what is committed to the file is written. The other is the replica of a log that is
// kept elsewhere (replica.go): what is written is in that log, and the file can be made anew from it. A mode is what follows from the one or the other,
// under the name of what follows; which of the two it is nobody asks but modeOf.
//
//	                 a log of its own                        a replica
//	others           nobody else writes                      revisions have gaps, what is newest has to be asked for
//	remade           what is damaged is mended here          a file that is damaged is thrown away, and filled anew
//	unlogged         a commit is in the file's log first     nothing is synced while it works
//	bounded          quota and reserve refuse writes         what is in the log is written, whether there is room or not

import "context"

// A mode is how a store does what is not the same in both kinds.
type mode struct {
	format  int64  // of the file
	lineage []byte // of a new file; nil: it draws one

	others, remade, unlogged, bounded bool

	open    func(path string, opts Options) (*Store, error)
	commit  func(st *Store, ctx context.Context, c Change) (Record, error)
	newest  func(st *Store, ctx context.Context) (rev int64, err error)                    // that the log had after the call began
	share   func(ctx context.Context, name string, fresh []byte) (value []byte, err error) // what all who have the log have under a name
	last    func(json []byte) (doc []byte, revAt int)                                      // see Replica.Last; nil: a deletion comes with it
	closing func(st *Store) error                                                          // before the last commit
	behind  error                                                                          // see Replica.Behind
}

// ownLog is the mode of a store with a log of its own.
func ownLog() mode {
	return mode{format: Format, bounded: true, open: open, commit: (*Store).commitInRoom,
		newest: func(st *Store, _ context.Context) (int64, error) { return st.Revision(), nil },
		share:  func(_ context.Context, _ string, fresh []byte) ([]byte, error) { return fresh, nil }, closing: func(*Store) error { return nil }}
}

// modeOf is the mode of a store with these options.
func modeOf(opts *Options) mode {
	r := opts.Replica
	if r == nil {
		return ownLog()
	}
	return mode{format: replicaFormat, lineage: r.Lineage[:], others: true, remade: true, unlogged: true, open: openReplica, commit: (*Store).propose,
		newest: func(_ *Store, ctx context.Context) (int64, error) { return r.Newest(ctx) }, share: r.Share, last: r.Last,
		closing: (*Store).syncReplica, behind: r.Behind}
}

// Shared tells whether others write to the log, too: other servers on the same cluster.
func (st *Store) Shared() bool { return st.mode.others }
