package sqldb

import (
	"database/sql"
	"time"
)

// SetPatience sets how long a server is tried that gives no clear answer.
func (s *Store) SetPatience(patience time.Duration) { s.patience = patience }

// Pool is the pool of a server's connections.
func (s *Store) Pool() *sql.DB { return s.database.(*server).db }
