package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5"

	"regent/ledger/sqldb"
	"regent/ledger/sqldb/pgtest"
)

// The stage that compares the ledger on PostgreSQL with its yardsticks, and what it measures of each.
const (
	ledgerStage   = "ledger"
	hotLoad       = "hot"         // one account that all callers share, beside their own
	ownLoad       = "independent" // no account is shared
	processTarget = "processes"   // and how many
)

// yard is a kind of yardstick. Each is measured with a connection for each caller, and with a few that callers wait for, as a pool does
// that is tuned: with these there is less that is in each other's way.
type yard struct {
	name, isolation string
	book            func(context.Context, *pgx.Conn, *booking, *moved) error
}

var (
	atOnceYard = yard{"one statement", "serializable", atOnce}
	lockedYard = yard{"row locks", "read committed", locked}
	yards      = []yard{atOnceYard, lockedYard}
	yardPools  = []int{callers, 4}
)

func (y yard) target(connections int) string {
	return fmt.Sprintf("%s, %d connections", y.name, connections)
}

func (y yard) targets() []string {
	return []string{y.target(yardPools[0]), y.target(yardPools[1])}
}

// postgres is a throw-away server, with a database for whoever asks for one. It syncs to disk, as a server in use does.
type postgres struct {
	cluster *pgtest.Cluster
	admin   *pgx.Conn
}

func openPostgres(ctx context.Context, libraries string) (*postgres, error) {
	settings := map[string]string{"track_wal_io_timing": "on", "shared_preload_libraries": libraries}
	if libraries != "" {
		settings["pg_stat_statements.track_planning"] = "on"
	}
	cluster, err := pgtest.New(pgtest.Options{Settings: settings})
	if err != nil {
		return nil, err
	}
	p := &postgres{cluster: cluster}
	if p.admin, err = pgx.Connect(ctx, cluster.URL("postgres")); err != nil {
		return nil, errors.Join(err, cluster.Remove())
	}
	return p, nil
}

func (p *postgres) close() error {
	return errors.Join(p.admin.Close(context.Background()), p.cluster.Remove())
}

// database makes a database and returns its URL.
func (p *postgres) database(ctx context.Context, name string) (string, error) {
	_, err := p.admin.Exec(ctx, "CREATE DATABASE "+name)
	return p.cluster.URL(name), err
}

// ledgerDatabase makes one with the ledger's tables.
func (p *postgres) ledgerDatabase(ctx context.Context, name string) (string, error) {
	url, err := p.database(ctx, name)
	if err == nil {
		_, _, err = sqldb.Migrate(ctx, sqldb.Config{URL: url})
	}
	return url, err
}

// cpu is the processor time that the server's processes have used so far which run now.
func (p *postgres) cpu(ctx context.Context) (map[int]time.Duration, error) {
	rows, err := p.admin.Query(ctx, "SELECT pid FROM pg_stat_activity")
	if err != nil {
		return nil, err
	}
	pids, err := pgx.CollectRows(rows, pgx.RowTo[int])
	used := map[int]time.Duration{}
	for _, pid := range pids {
		used[pid] = cpuOf(pid)
	}
	return used, err
}

// wal is where the write-ahead log stands, in bytes, and how long all syncs of it took so far.
func (p *postgres) wal(ctx context.Context) (bytes float64, syncing time.Duration, err error) {
	var ms float64
	err = p.admin.QueryRow(ctx, `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8, wal_sync_time FROM pg_stat_wal`).Scan(&bytes, &ms)
	return bytes, time.Duration(ms * float64(time.Millisecond)), err
}

// ledgers measures the ledger on PostgreSQL.
func (b *bench) ledgers() (err error) {
	pg, err := openPostgres(b.ctx, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.close()) }()
	for _, measure := range []func(*postgres) error{b.compareBooks, b.countBooks, b.compareProcesses} {
		if err := measure(pg); err != nil {
			return err
		}
	}
	return nil
}

// ledgerRounds are fewer than the others: a round takes 40 s.
func (b *bench) ledgerRounds() int { return (b.rounds + 1) / 2 }

// ledgerSample is long enough for what waits in a queue.
func (b *bench) ledgerSample() time.Duration { return 2 * b.dur }

// openBooks opens the ledger and the yardsticks, each on a database of its own.
func (b *bench) openBooks(pg *postgres) (opened map[string]books, err error) {
	opened = map[string]books{}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeBooks(opened))
		}
	}()
	url, err := pg.ledgerDatabase(b.ctx, "ours")
	if err != nil {
		return opened, err
	}
	ours, err := openOurs(b.ctx, url, "ledger", nil)
	if err != nil {
		return opened, err
	}
	opened[regent] = ours
	for _, y := range yards {
		for _, connections := range yardPools {
			if url, err = pg.database(b.ctx, fmt.Sprintf("%s_%d", strings.ReplaceAll(y.name, " ", "_"), connections)); err != nil {
				return opened, err
			}
			on, err := openYardstick(b.ctx, url, y.isolation, connections, y.book)
			if err != nil {
				return opened, fmt.Errorf("%s: %w", y.name, err)
			}
			opened[y.target(connections)] = on
		}
	}
	return opened, nil
}

func closeBooks(opened map[string]books) error {
	var errs []error
	for _, on := range opened {
		errs = append(errs, on.close())
	}
	return errors.Join(errs...)
}

// compareBooks measures the ledger and its yardsticks in turn.
func (b *bench) compareBooks(pg *postgres) (err error) {
	opened, err := b.openBooks(pg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBooks(opened)) }()
	targets := append(append([]string{regent}, atOnceYard.targets()...), lockedYard.targets()...)
	for round := range b.ledgerRounds() {
		for _, load := range []string{hotLoad, ownLoad} {
			for i := range targets {
				target := targets[(i+round)%len(targets)]
				if err := b.takeBooks(pg, opened[target], round, load, target); err != nil {
					return fmt.Errorf("%s, %s: %w", target, load, err)
				}
			}
		}
	}
	for target, on := range opened {
		if err := errors.Join(checkLimit(b.ctx, on), on.verify(b.ctx)); err != nil {
			return fmt.Errorf("%s: %w", target, err)
		}
	}
	return nil
}

// takeBooks measures one load, after a short one that opens connections and prepares statements.
func (b *bench) takeBooks(pg *postgres, on books, round int, load, target string) error {
	name, group := fmt.Sprintf("%s-%d", load, round), ""
	if load == hotLoad {
		group = name
	}
	if _, err := bookFor(b.ctx, on, callers, name, group, b.ledgerSample()/4); err != nil {
		return err
	}
	return b.leastDisturbed(func() (sample, error) {
		m, err := pg.measure(b.ctx, on)
		if err != nil {
			return sample{}, err
		}
		result, err := bookFor(b.ctx, on, callers, name, group, b.ledgerSample())
		if err != nil {
			return sample{}, err
		}
		v, foreign, err := m.values(b.ctx, result)
		return sample{Stage: load, Target: target, Round: round, Values: v, Foreign: foreign}, err
	})
}

// leastDisturbed takes a sample, and once more if it was disturbed.
func (b *bench) leastDisturbed(take func() (sample, error)) error {
	best, err := take()
	if err == nil && best.Foreign > disturbed && b.repeats > 0 {
		b.repeats--
		var again sample
		if again, err = take(); again.Foreign < best.Foreign {
			best = again
		}
	}
	if err == nil {
		b.samples = append(b.samples, best)
	}
	return err
}

// measurement is what counters said before a load.
type measurement struct {
	pg                        *postgres
	on                        books
	began                     time.Time
	busy, own                 time.Duration
	server                    map[int]time.Duration
	written                   float64
	syncing                   time.Duration
	commits, trips, preparing int64
}

func (p *postgres) measure(ctx context.Context, on books) (m *measurement, err error) {
	m = &measurement{pg: p, on: on}
	if m.server, err = p.cpu(ctx); err != nil {
		return nil, err
	}
	if m.written, m.syncing, err = p.wal(ctx); err != nil {
		return nil, err
	}
	if ours, is := on.(*ourBooks); is {
		m.commits, m.trips, m.preparing = ours.commits(), ours.trips.Load(), ours.preparing.Load()
	}
	m.began, m.busy, m.own = time.Now(), machineBusy(), ownCPU()
	return m, nil
}

// values are what a load has come to. Of a batch, the ledger's transaction, they tell where its time went.
func (m *measurement) values(ctx context.Context, result *booked) (v values, foreign float64, err error) {
	busy, own, wall := machineBusy()-m.busy, ownCPU()-m.own, time.Since(m.began)
	server, err := m.pg.cpu(ctx)
	if err != nil {
		return nil, 0, err
	}
	var served time.Duration
	for pid, used := range server {
		served += used - m.server[pid]
	}
	written, syncing, err := m.pg.wal(ctx)
	operations := float64(len(result.Latencies))
	v = values{
		"ops": result.perSecond(), "p50": quantile(result.Latencies, .5), "p99": quantile(result.Latencies, .99),
		"conflicts": float64(result.Conflicts) / operations, "wal": (written - m.written) / operations,
		"go_us": float64(own.Microseconds()) / operations, "server_us": float64(served.Microseconds()) / operations,
	}
	if ours, is := m.on.(*ourBooks); is {
		commits := float64(ours.commits() - m.commits)
		v["per_commit"], v["trips"] = operations/commits, float64(ours.trips.Load()-m.trips)/commits
		v["preparing"] = float64(ours.preparing.Load()-m.preparing) / commits
		v["batch_ms"] = result.Took.Seconds() * 1e3 / commits
		v["sync_ms"] = (syncing - m.syncing).Seconds() * 1e3 / commits
	}
	return v, max(0, (busy-own-served).Seconds()/wall.Seconds()), err
}

// processCounts are how many processes share a database.
var processCounts = []int{1, 2, 4}

// compareProcesses has processes share a database: all of them have as many callers as one has alone.
func (b *bench) compareProcesses(pg *postgres) error {
	url, err := pg.ledgerDatabase(b.ctx, "shared")
	if err != nil {
		return err
	}
	var workers []*process
	for i := range slices.Max(processCounts) {
		w, err := b.start(fmt.Sprintf("ledger-%d", i), nil, b.self, ledgerProgram, url)
		if err != nil {
			return err
		}
		workers = append(workers, w)
	}
	for round := range b.ledgerRounds() {
		for _, load := range []string{hotLoad, ownLoad} {
			for i := range processCounts {
				n := processCounts[(i+round)%len(processCounts)]
				if err := b.takeProcesses(pg, workers[:n], round, load); err != nil {
					return fmt.Errorf("%d processes, %s: %w", n, load, err)
				}
			}
		}
	}
	return b.verifyShared(url)
}

func (b *bench) verifyShared(url string) error {
	ours, err := openOurs(b.ctx, url, "ledger", nil)
	if err != nil {
		return err
	}
	return errors.Join(ours.verify(b.ctx), ours.close())
}

func (b *bench) takeProcesses(pg *postgres, workers []*process, round int, load string) error {
	order := workerOrder{Callers: callers / len(workers), For: b.ledgerSample()}
	if load == hotLoad {
		order.Group = fmt.Sprintf("hot-%d-%d", len(workers), round)
	}
	warm := order
	warm.For /= 4
	if _, err := bookTogether(workers, warm, round); err != nil {
		return err
	}
	return b.leastDisturbed(func() (sample, error) {
		var used time.Duration
		for _, w := range workers {
			used -= w.cpu()
		}
		m, err := pg.measure(b.ctx, nil)
		if err != nil {
			return sample{}, err
		}
		results, err := bookTogether(workers, order, round)
		if err != nil {
			return sample{}, err
		}
		for _, w := range workers {
			used += w.cpu()
		}
		all := &booked{Took: order.For}
		v := values{}
		for _, r := range results {
			v["ops"] += r.perSecond()
			all.Latencies, all.Conflicts = append(all.Latencies, r.Latencies...), all.Conflicts+r.Conflicts
		}
		of, foreign, err := m.values(b.ctx, all)
		v["conflicts"], v["p50"], v["p99"], v["server_us"] = of["conflicts"], of["p50"], of["p99"], of["server_us"]
		foreign = max(0, foreign-used.Seconds()/time.Since(m.began).Seconds())
		return sample{Stage: load, Target: fmt.Sprintf("%s %d", processTarget, len(workers)), Round: round, Values: v, Foreign: foreign}, err
	})
}

// bookTogether has workers book at the same time.
func bookTogether(workers []*process, order workerOrder, round int) ([]booked, error) {
	results, errs := make([]booked, len(workers)), make([]error, len(workers))
	done := make(chan struct{})
	for i, w := range workers {
		order.Name = fmt.Sprintf("process-%d-%d-%d", len(workers), round, i)
		go func() {
			errs[i] = askWorker(w, order, &results[i])
			done <- struct{}{}
		}()
	}
	for range workers {
		<-done
	}
	return results, errors.Join(errs...)
}

func askWorker(w *process, order workerOrder, result *booked) error {
	text, err := json.Marshal(order)
	if err != nil {
		return err
	}
	answer, err := w.ask(string(text))
	if err != nil {
		return fmt.Errorf("%w: %s", err, w.said())
	}
	if err := json.Unmarshal([]byte(answer), result); err != nil {
		return fmt.Errorf("%s: %s", w.name, answer)
	}
	return nil
}

func (b *bench) reportLedger(w *tabwriter.Writer) {
	for _, load := range []string{hotLoad, ownLoad} {
		if len(b.all(load, regent, "")) == 0 {
			return
		}
	}
	_, _ = fmt.Fprintln(w, "64 callers on PostgreSQL\t\tops/s\tregent is\tp50 ms\tp99 ms\tconflicts/op\tµs/op here\tµs/op server\tWAL B/op\t")
	for _, load := range []string{hotLoad, ownLoad} {
		for _, t := range append(append(atOnceYard.targets(), lockedYard.targets()...), regent) {
			v := func(value string) float64 { return b.of(load, t, value) }
			_, _ = fmt.Fprintf(w, "%s\t%s\t%.0f\t%.2f x\t%.1f\t%.1f\t%.3f\t%.0f\t%.0f\t%.0f\t\n", load, t, v("ops"), b.of(load, regent, "ops")/v("ops"),
				v("p50")/1e3, v("p99")/1e3, v("conflicts"), v("go_us"), v("server_us"), v("wal"))
		}
		for _, n := range processCounts {
			t := fmt.Sprintf("%s %d", processTarget, n)
			v := func(value string) float64 { return b.of(load, t, value) }
			_, _ = fmt.Fprintf(w, "%s\t%s\t%.0f\t\t%.1f\t%.1f\t%.3f\t\t%.0f\t\t\n", load, t, v("ops"), v("p50")/1e3, v("p99")/1e3,
				v("conflicts"), v("server_us"))
		}
	}
	_, _ = fmt.Fprintln(w, "\na batch\t\tops\tround trips\tto prepare\tms\tof it here\tserver\tsync\t")
	for _, load := range []string{hotLoad, ownLoad} {
		v := func(value string) float64 { return b.of(load, regent, value) }
		_, _ = fmt.Fprintf(w, "%s\t\t%.1f\t%.2f\t%.2f\t%.1f\t%.1f\t%.1f\t%.1f\t\n", load, v("per_commit"), v("trips"), v("preparing"), v("batch_ms"),
			v("go_us")*v("per_commit")/1e3, v("server_us")*v("per_commit")/1e3, v("sync_ms"))
	}
	b.reportPoints(w)
	_, _ = fmt.Fprintln(w)
}

// judgeLedger holds the ledger on PostgreSQL against its targets.
func (b *bench) judgeLedger() (judged []judgement) {
	if len(b.all(hotLoad, regent, "")) > 0 {
		// Each yardstick counts as it does best.
		faster := func(load string, than yard) float64 {
			return b.of(load, regent, "ops") / max(b.of(load, than.targets()[0], "ops"), b.of(load, than.targets()[1], "ops"))
		}
		p99 := math.Inf(1)
		for _, target := range append(atOnceYard.targets(), lockedYard.targets()...) {
			p99 = min(p99, b.of(hotLoad, target, "p99"))
		}
		judged = append(judged,
			atLeast(10, "hot account, operations to those of one statement", faster(hotLoad, atOnceYard)),
			atLeast(8, "hot account, operations to those of row locks", faster(hotLoad, lockedYard)),
			atMost(0.2, "hot account, p99 to the better one's", b.of(hotLoad, regent, "p99")/p99),
			atLeast(1.05, "independent accounts, operations to the better one's", min(faster(ownLoad, atOnceYard), faster(ownLoad, lockedYard))),
			atLeast(16, "operations per commit", min(b.of(hotLoad, regent, "per_commit"), b.of(ownLoad, regent, "per_commit"))),
			atMost(2, "round trips per batch", max(b.of(hotLoad, regent, "trips"), b.of(ownLoad, regent, "trips"))),
		)
	}
	for _, n := range processCounts[1:] {
		for _, load := range []struct {
			name  string
			least float64
		}{{ownLoad, 0.8}, {hotLoad, 0.5}} {
			one, many := fmt.Sprintf("%s %d", processTarget, processCounts[0]), fmt.Sprintf("%s %d", processTarget, n)
			if len(b.all(load.name, many, "")) > 0 {
				judged = append(judged, atLeast(load.least, fmt.Sprintf("%d processes to one, %s accounts", n, load.name),
					b.of(load.name, many, "ops")/b.of(load.name, one, "ops")))
			}
		}
	}
	if len(b.all(ledgerStage, regent, "")) > 0 {
		judged = append(judged, atMost(2, "transactions of a call", b.of(ledgerStage, regent, "transactions")))
	}
	return judged
}
