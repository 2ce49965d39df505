package sqldb

import (
	"database/sql"
	"fmt"
	"time"
)

// SetPatience sets how long a server is tried that gives no clear answer.
func (s *Store) SetPatience(patience time.Duration) { s.patience = patience }

// Pool is the pool of a server's connections that write.
func (s *Store) Pool() *sql.DB { return s.database.(*server).writer }

// InUse is the number of a server's connections that are in use.
func (s *Store) InUse() int {
	server := s.database.(*server)
	return server.writer.Stats().InUse + server.readers.Stats().InUse
}

// LimitPages has an SQLite file grow to so many pages and no further; it is not made smaller. The ledger must be at rest.
func (s *Store) LimitPages(n int) {
	s.database.(*file).writer.begin = fmt.Sprintf("PRAGMA max_page_count = %d; BEGIN IMMEDIATE", n)
}
