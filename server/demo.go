package server

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"regent/server/catalog"
)

// demoTokenVariable is what the demo's catalogue names its user's token by. It may be set to bring a token along.
const demoTokenVariable = "REGENT_DEMO_TOKEN"

// demoToken is the token of the demo's user: from the environment, else the one that an earlier run has kept in the data
// folder, else a new one, which is kept.
func demoToken(folder string, env func(string) (string, bool)) (string, error) {
	if token, given := env(demoTokenVariable); given {
		return token, nil
	}
	path := filepath.Join(folder, "demo-token")
	text, err := os.ReadFile(path)
	if err == nil {
		token := strings.TrimSpace(string(text))
		if !catalog.ValidToken(token) {
			return "", fmt.Errorf("%s does not hold a token (gwi_ and 64 hex digits); remove it, and the next start makes a new one", path)
		}
		return token, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the demo's token: %w", err)
	}
	token := NewToken()
	if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("the demo's token cannot be kept: %w (set REGENT_DATA to a folder that can be written)", err)
	}
	return token, nil
}

// NewToken makes an inference token from 32 random bytes.
func NewToken() string {
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // it never fails: the runtime ends the process instead
	return "gwi_" + hex.EncodeToString(secret[:])
}
