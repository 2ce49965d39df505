package sqldb_test

import (
	"testing"

	"go.uber.org/goleak"

	"regent/ledger/sqldb/pgtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Tests{M: m}) }
