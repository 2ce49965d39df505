package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"

	"github.com/jackc/pgx/v5"
)

// profileLedger profiles the ledger on PostgreSQL under each load: this process, in which it runs, and the server's statements.
func (b *bench) profileLedger(folder string) (err error) {
	pg, err := openPostgres(b.ctx, "pg_stat_statements")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.close()) }()
	if _, err := pg.admin.Exec(b.ctx, "CREATE EXTENSION pg_stat_statements"); err != nil {
		return err
	}
	url, err := pg.ledgerDatabase(b.ctx, "profiled")
	if err != nil {
		return err
	}
	ours, err := openOurs(b.ctx, url, "ledger", nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.close()) }()
	for _, load := range []string{hotLoad, ownLoad} {
		if err := b.profileBooks(pg, ours, load, filepath.Join(folder, "ledger-"+load)); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) profileBooks(pg *postgres, ours *ourBooks, load, file string) error {
	group := ""
	if load == hotLoad {
		group = hotLoad
	}
	if _, err := bookFor(b.ctx, ours, callers, load, group, profileFor/4); err != nil {
		return err
	}
	if _, err := pg.admin.Exec(b.ctx, "SELECT pg_stat_statements_reset()"); err != nil {
		return err
	}
	if err := writeFile(file+".cpu.pprof", pprof.StartCPUProfile); err != nil {
		return err
	}
	m, err := pg.measure(b.ctx, ours)
	if err != nil {
		return err
	}
	result, err := bookFor(b.ctx, ours, callers, load, group, profileFor)
	pprof.StopCPUProfile()
	if err != nil {
		return err
	}
	v, _, err := m.values(b.ctx, result)
	if err != nil {
		return err
	}
	statements, err := pg.statements(b, float64(len(result.Latencies))/v["per_commit"])
	if err != nil {
		return err
	}
	table, err := rooms(file+".cpu.pprof", "cpu", "ms")
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s: %.0f operations/s, a batch of %.1f takes %.1f ms: here %.1f, server %.1f, sync %.1f\n%s\n%s\n", load, v["ops"], v["per_commit"],
		v["batch_ms"], v["go_us"]*v["per_commit"]/1e3, v["server_us"]*v["per_commit"]/1e3, v["sync_ms"], table, statements)
	fmt.Print(text)
	return os.WriteFile(file+".txt", []byte(text), 0o644)
}

// statements is a table of where the server's time went, by the beginnings of the statements, in microseconds a batch.
func (p *postgres) statements(b *bench, batches float64) (string, error) {
	rows, err := p.admin.Query(b.ctx, `SELECT left(regexp_replace(query, '\s+', ' ', 'g'), 70), count(*), sum(calls)::float8, sum(total_plan_time) * 1e3, sum(total_exec_time) * 1e3,
		sum(rows)::float8 FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = 'profiled'
		GROUP BY 1 ORDER BY sum(total_plan_time + total_exec_time) DESC LIMIT 30`)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	var query string
	var texts int
	var calls, plan, exec, found float64
	fmt.Fprintf(&text, "%8s %8s %8s %8s %6s  statement, a batch\n", "calls", "rows", "plan µs", "exec µs", "texts")
	_, err = pgx.ForEachRow(rows, []any{&query, &texts, &calls, &plan, &exec, &found}, func() error {
		fmt.Fprintf(&text, "%8.2f %8.1f %8.0f %8.0f %6d  %s\n", calls/batches, found/batches, plan/batches, exec/batches, texts, query)
		return nil
	})
	return text.String(), err
}
