// Command importer turns the JSON data of @pydantic/genai-prices into the list of package pricelist, on standard output.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"regent/server/catalog/pricelist"
)

func main() {
	version := flag.String("version", "", "version of the data")
	date := flag.String("date", "", "day on which that version was published, as YYYY-MM-DD")
	flag.Parse()
	if err := run(*version, *date, flag.Args(), os.Stdout); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "importer:", err)
		os.Exit(1)
	}
}

func run(version, date string, files []string, to io.Writer) error {
	if _, err := time.Parse(time.DateOnly, date); err != nil || version == "" || len(files) != 1 {
		return fmt.Errorf("want -version VERSION -date YYYY-MM-DD DATA.json")
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		return err
	}
	list := pricelist.List{Source: "@pydantic/genai-prices", Version: version, Date: date}
	if list.Models, err = convert(data, date); err != nil {
		return err
	}
	return write(list, to)
}

// write writes a line a model, so that two lists can be compared.
func write(list pricelist.List, to io.Writer) error {
	out := bufio.NewWriter(to)
	_, _ = fmt.Fprintf(out, "{\"source\":%q,\"version\":%q,\"date\":%q,\"models\":[\n", list.Source, list.Version, list.Date)
	for i, model := range list.Models {
		line, err := json.Marshal(model)
		if err != nil {
			return err
		}
		separator := ","
		if i == len(list.Models)-1 {
			separator = ""
		}
		_, _ = fmt.Fprintf(out, "%s%s\n", line, separator)
	}
	_, _ = out.WriteString("]}\n")
	return out.Flush() // which tells of every write before it
}
