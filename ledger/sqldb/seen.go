package sqldb

import "sync"

// seenMax bounds what is remembered: some MB. Beyond it everything is forgotten, and made again once.
const seenMax = 1 << 16

// seen remembers accounts that are there, so that none of them is made again before it is locked. Only what was touched is remembered:
// nobody removes that. If somebody has all the same, it is found missing, forgotten, and made in the next attempt.
type seen struct {
	mu       sync.Mutex
	accounts map[string]struct{}
}

// unseen are the arguments of accounts that are not remembered.
func (s *seen) unseen(named list) (unseen list) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, row := range named {
		if _, is := s.accounts[row[0].(string)]; !is {
			unseen = append(unseen, row)
		}
	}
	return unseen
}

func (s *seen) add(account string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accounts == nil || len(s.accounts) >= seenMax {
		s.accounts = map[string]struct{}{}
	}
	s.accounts[account] = struct{}{}
}

func (s *seen) remove(account string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.accounts, account)
}
