// Command render renders one set of values per line of JSON on stdin, in one process, as Helm 3 would.
//
//	render charts/trainyard < values.jsonl
//
// For each line it prints one line: {"manifests": "..."} or {"error": "..."}; with -stored also how many bytes the Secret
// that holds the release would have. A panic of a template function is an
// error here as in Helm; a panic of the program ends it.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
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
	"helm.sh/helm/v3/pkg/release"
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

// stored returns the size of a release as Helm keeps it: JSON, compressed, in base64.
func stored(ch *chart.Chart, values map[string]any, manifest string) (int, error) {
	text, err := json.Marshal(&release.Release{Name: "demo", Namespace: "vision", Version: 1, Chart: ch, Config: values,
		Manifest: manifest, Info: &release.Info{Status: release.StatusDeployed}})
	if err != nil {
		return 0, err
	}
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return 0, err
	}
	if _, err := zip.Write(text); err != nil {
		return 0, err
	}
	err = zip.Close()
	return base64.StdEncoding.EncodedLen(packed.Len()), err
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
	options := chartutil.ReleaseOptions{Name: "demo", Namespace: "vision", Revision: 1, IsInstall: true}
	all, err := chartutil.ToRenderValuesWithSchemaValidation(ch, values, options, chartutil.DefaultCapabilities, true)
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

func run(folder string, size bool) error {
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
		answer := map[string]any{}
		manifests, err := render(files, values)
		if err != nil {
			answer["error"] = err.Error()
		} else {
			answer["manifests"] = manifests
		}
		if size {
			if answer["stored"], err = stored(ch, values, manifests); err != nil {
				return err
			}
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
	return in.Err()
}

func main() {
	size := flag.Bool("stored", false, "say how large the stored release is")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: render [-stored] CHART < values.jsonl")
		os.Exit(2)
	}
	if err := run(flag.Arg(0), *size); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
