package adapters

// DepthMax bounds how deeply JSON may be nested, of a request and of an answer: schemas of tools nest some ten deep, and whatever reads
// JSON recursively needs stack for each level, of which a process has no second one.
const DepthMax = 200

// TooDeep says whether a document is nested deeper than [DepthMax]. It counts brackets outside of strings, so that it can look at a
// document before anything recursive does.
func TooDeep(document []byte) bool {
	depth, inString := 0, false
	for i := 0; i < len(document); i++ {
		switch c := document[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			if depth++; depth > DepthMax {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}
