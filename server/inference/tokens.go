package inference

import (
	"context"
	"hash/maphash"
	"sync"
	"unicode/utf8"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/tiktoken-go/tokenizer"

	"regent/ledger"
	"regent/server/catalog"
)

// inputTokens estimates the prompt for a model: its text, and for each part beyond text the most that the model can make of it.
func (e *envelope) inputTokens(ctx context.Context, model *catalog.Model) int64 {
	tokens := e.textTokens(ctx, model.ContextTokens)
	for modality, count := range e.modalities { // policy denies a modality that the model has no maximum for
		most := model.Modalities[modality]
		if most > (ledger.TokensMax-tokens)/count {
			return ledger.TokensMax
		}
		tokens += count * most
	}
	return tokens
}

// textTokens counts the prompt's text. A text that does not fit the context by its bytes alone is not counted, as that would
// cost more than the refusal that follows; nor is one whose client has gone.
func (e *envelope) textTokens(ctx context.Context, contextTokens *int64) int64 {
	if floor := (e.textBytes+3)/4 + e.formatTokens; contextTokens != nil && floor > *contextTokens {
		return floor
	}
	if e.textBytes > countedFreely {
		select {
		case counting <- struct{}{}:
			defer func() { <-counting }()
		case <-ctx.Done():
		}
	}
	tokens := e.formatTokens
	for _, text := range e.texts {
		if ctx.Err() != nil {
			return tokens + e.textBytes // a token is at least a byte
		}
		tokens += countTokens(text)
	}
	return tokens
}

// countedFreely is the size of a prompt that is counted at once, in less than 10 ms; of larger ones one is counted at a time, so
// that they cannot take the processor from everybody else.
const countedFreely = 64 << 10

// counting holds the one large prompt that is being counted.
var counting = make(chan struct{}, 1)

// vocabulary is loaded when the first prompt is counted: it takes some 50 ms.
var vocabulary = sync.OnceValues(func() (tokenizer.Codec, error) { return tokenizer.Get(tokenizer.O200kBase) })

// countedAtOnce is how much text the tokenizer gets at a time: its time grows with the square of a text without spaces. Cutting
// a text can only add tokens.
const countedAtOnce = 2 << 10

// countTokens estimates the tokens of a text by OpenAI's newest vocabulary, and never below a quarter of its bytes: other
// vendors' vocabularies differ, and a hold must rather be too large.
func countTokens(text string) int64 {
	floor := int64(len(text)+3) / 4
	codec, err := vocabulary()
	if err != nil {
		return int64(len(text)) // a token is at least a byte
	}
	var sum int64
	for len(text) > 0 {
		piece := text[:min(len(text), countedAtOnce)]
		for len(piece) < len(text) && len(piece) > 0 && !utf8.RuneStart(text[len(piece)]) {
			piece = piece[:len(piece)-1]
		}
		text = text[len(piece):]
		sum += countPiece(codec, piece)
	}
	return max(floor, sum)
}

// countPiece counts the tokens of a piece of text, or remembers them: every turn of a conversation repeats all turns before it.
func countPiece(codec tokenizer.Codec, piece string) int64 {
	key := pieceKey{maphash.String(pieceSeed, piece), len(piece)}
	if tokens, known := pieces.Get(key); known {
		return tokens
	}
	tokens := int64(len(piece))
	if n, err := codec.Count(piece); err == nil {
		tokens = int64(n)
	}
	pieces.Add(key, tokens)
	return tokens
}

// pieceKey stands for a piece of text, which itself is not kept. Nobody outside knows the seed, so nobody can make two texts that
// share a key; if two ever do, an estimate is wrong that is an estimate anyway, and never below a quarter of the bytes.
type pieceKey struct {
	hash uint64
	size int
}

var (
	pieceSeed = maphash.MakeSeed()
	pieces, _ = lru.New[pieceKey, int64](piecesMax) // it fails only for a size below 1
)

// piecesMax bounds what is remembered: 100 MB of conversations, in some 8 MB.
const piecesMax = 1 << 16
