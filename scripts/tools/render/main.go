// Command render renders one set of values per line of JSON on stdin, in one process, as Helm 3 would.
//
//	render charts/trainyard < values.jsonl
//
// For each line it prints one line: {"manifests": "..."} or {"error": "..."}. A panic of a template function is an
// error here as in Helm; a panic of the program ends it.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"sort"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
)

var compiled = map[string]*jsonschema.Schema{}

// validate does what chartutil.ValidateAgainstSchema does, but compiles each schema once instead of each time.
func validate(ch *chart.Chart, values map[string]any) (string, error) {
	wrong := ""
	if ch.Schema != nil {
		schema := compiled[ch.ChartFullPath()]
		if schema == nil {
			parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(ch.Schema))
			if err != nil {
				return "", err
			}
			compiler := jsonschema.NewCompiler()
			if err := compiler.AddResource("file:///values.schema.json", parsed); err != nil {
				return "", err
			}
			if schema, err = compiler.Compile("file:///values.schema.json"); err != nil {
				return "", err
			}
			compiled[ch.ChartFullPath()] = schema
		}
		if err := schema.Validate(values); err != nil {
			wrong += ch.Name() + ":\n" + err.Error() + "\n"
		}
	}
	for _, sub := range ch.Dependencies() {
		if own, ok := values[sub.Name()].(map[string]any); ok {
			more, err := validate(sub, own)
			if err != nil {
				return "", err
			}
			wrong += more
		}
	}
	return wrong, nil
}

func render(files []*loader.BufferedFile, values map[string]any) (string, error) {
	ch, err := loader.LoadFiles(files) // anew: disabled subcharts are cut out of it
	if err != nil {
		return "", err
	}
	if err := chartutil.ProcessDependenciesWithMerge(ch, values); err != nil {
		return "", err
	}
	coalesced, err := chartutil.CoalesceValues(ch, values)
	if err != nil {
		return "", err
	}
	if wrong, err := validate(ch, coalesced); err != nil || wrong != "" {
		return "", errors.Join(err, errors.New("values don't meet the specifications of the schema(s):\n"+wrong))
	}
	release := chartutil.ReleaseOptions{Name: "demo", Namespace: "vision", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValuesWithSchemaValidation(ch, values, release, chartutil.DefaultCapabilities, true)
	if err != nil {
		return "", err
	}
	rendered, err := engine.Render(ch, all)
	if err != nil {
		return "", err
	}
	names := make([]string, 0, len(rendered))
	for name := range rendered {
		if ext := path.Ext(name); ext == ".yaml" && strings.TrimSpace(rendered[name]) != "" {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var out strings.Builder
	for _, name := range names {
		fmt.Fprintf(&out, "---\n# Source: %s\n%s\n", name, rendered[name])
	}
	return out.String(), nil
}

// raw returns a loaded chart's files, its subcharts' too, as they were read.
func raw(ch *chart.Chart, prefix string) (files []*loader.BufferedFile) {
	for _, f := range ch.Raw {
		files = append(files, &loader.BufferedFile{Name: prefix + f.Name, Data: f.Data})
	}
	for _, d := range ch.Dependencies() {
		files = append(files, raw(d, prefix+"charts/"+d.Name()+"/")...)
	}
	return files
}

func run(folder string) error {
	ch, err := loader.LoadDir(folder)
	if err != nil {
		return err
	}
	files := raw(ch, "")
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var values map[string]any
		if err := json.Unmarshal(in.Bytes(), &values); err != nil {
			return err
		}
		answer := map[string]string{}
		if answer["manifests"], err = render(files, values); err != nil {
			answer = map[string]string{"error": err.Error()}
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return in.Err()
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: render CHART < values.jsonl")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
