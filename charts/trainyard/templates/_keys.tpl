{{/*
What is wrong with the names and texts of the values, a line each. files/keys.json, which hack/schemas/generate generates from the
annotated values, holds the tree of all keys: a key has a map of further keys, `#NAME` for a tree that several places share, `=FORMAT` for a
text of that format, `[]=FORMAT` for a list of them, `[]` for any list, `{}` for any map, 2 for a number, 3 for a whole one, or 1 for what
only the schema checks.
*/}}
{{- define "trainyard.keyErrors" -}}
{{- $book := .Files.Get "files/keys.json" | fromJson -}}
{{- include "trainyard.walk" (dict "values" .Values "known" $book.keys "path" "" "book" $book "root" .) -}}
{{- end -}}

{{/* The same of one map. Call with a dict: values, known (the keys that it may have), path (with a dot at its end, or empty), book, root. */}}
{{- define "trainyard.walk" -}}
{{- range $key, $value := .values -}}
{{- $shape := get $.known $key -}}
{{- if not $shape -}}
{{- range get $.known "~" | default list -}}
{{- if regexMatch (first .) $key -}}{{- $shape = last . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- $path := printf "%s%s" $.path $key -}}
{{- if not $shape }}
{{ include "trainyard.unknown" (dict "key" $key "path" $.path "known" $.known "root" $.root) }}
{{- else if kindIs "float64" $shape -}}
{{- if gt $shape 1.0 }}{{ include "trainyard.number" (dict "value" $value "path" $path "whole" (eq $shape 3.0)) }}{{ end -}}
{{- else -}}
{{- if and (kindIs "string" $shape) (hasPrefix "#" $shape) -}}{{- $shape = get $.book.shared (trimPrefix "#" $shape) -}}{{- end -}}
{{- if or (kindIs "map" $shape) (eq (toString $shape) "{}") -}}
{{- if not (kindIs "map" $value) }}
{{ $path }} is {{ include "trainyard.kind" $value }}: {{ ternary "leave it out, or write" "write" (kindIs "invalid" $value) }} a map{{ with get
  $.book.maps $key }}, such as {{ . }}{{ end }}.
{{- else if kindIs "map" $shape -}}
{{- include "trainyard.walk" (dict "values" $value "known" $shape "path" (printf "%s." $path) "book" $.book "root" $.root) -}}
{{- end -}}
{{- else if hasPrefix "=" $shape -}}
{{- $format := get $.book.formats (trimPrefix "=" $shape) -}}
{{- if not (and (kindIs "string" $value) (regexMatch $format.pattern $value)) -}}
{{- include "trainyard.text" (dict "value" $value "path" $path "format" $format) -}}
{{- end -}}
{{- else if kindIs "slice" $value -}}
{{- range $index, $item := $value -}}
{{- include "trainyard.text" (dict "value" $item "path" (printf "%s[%d]" $path $index) "format" (get $.book.formats (trimPrefix "[]=" $shape))) -}}
{{- end -}}
{{- else }}
{{ $path }} is {{ include "trainyard.kind" $value }}: write a list{{ with get $.book.lists $key }}, such as {{ . }}{{ end }}.
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What is wrong with a number, if anything; config's may be text, as Helm's --set writes 0.1. Call with a dict: value, path, whole. */}}
{{- define "trainyard.number" -}}
{{- $typed := and (kindIs "string" .value) (regexMatch "^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$" .value) -}}
{{- $number := ternary (float64 (toString .value)) .value (and $typed (contains ".config." .path)) -}}
{{- if kindIs "string" $number }}
{{ .path }} is a text ({{ .value | trunc 50 | quote }}): write {{ ternary "it without quotes" "a number" $typed }}{{ if
  $typed }}; on the command line, --set-json {{ .path }}={{ .value }}{{ end }}.
{{- else if not (or (kindIs "float64" $number) (kindIs "int64" $number) (kindIs "int" $number)) }}
{{ .path }} is {{ include "trainyard.kind" .value }}: write a number.
{{- else if and .whole (ne (float64 (int64 $number)) (float64 $number)) }}
{{ .path }} is {{ .value }}: write a whole number.
{{- end -}}
{{- end -}}

{{/* What is wrong with a text, if anything. Call with a dict: value, path, format. */}}
{{- define "trainyard.text" -}}
{{- with .format -}}
{{- $number := or (kindIs "float64" $.value) (kindIs "int64" $.value) (kindIs "int" $.value) -}}
{{- $text := toString $.value -}}
{{- if and $number (eq (float64 (int64 $.value)) (float64 $.value)) -}}{{- $text = toString (int64 $.value) -}}{{- end -}}
{{- if not (or (kindIs "string" $.value) (and $number .numbers)) }}
{{ $.path }} is {{ include "trainyard.kind" $.value }}{{ if
  $number }} ({{ $text }}): put it in quotes, or on the command line use --set-string{{ else }}: write {{ .say }}{{ end }}.
{{- else if not (or (regexMatch .pattern $text) (and $number (eq (toString .numbers) "any"))) }}
{{ $.path }} is {{ $text | trunc 200 | quote }}: write {{ .say }}.
{{- end -}}
{{- end -}}
{{- end -}}

{{/* A value's kind, for people. */}}
{{- define "trainyard.kind" -}}
{{- if kindIs "map" . -}}a map
{{- else if kindIs "slice" . -}}a list
{{- else if kindIs "bool" . -}}true or false
{{- else if kindIs "string" . -}}a text
{{- else if kindIs "invalid" . -}}null
{{- else -}}a number
{{- end -}}
{{- end -}}

{{/*
An unknown key, and what was probably meant: a similar key of the same map, or the place of a key with that name. Call with a dict: key, path,
known, root.
*/}}
{{- define "trainyard.unknown" -}}
{{- $key := .key -}}
{{- $book := .root.Files.Get "files/where.json" | fromJson -}}
{{- $best := "" -}}
{{- $score := 44 -}}
{{- range $name, $_ := omit .known "~" -}}
{{- $alike := include "trainyard.alike" (list $key $name) | int -}}
{{- if gt $alike $score -}}{{- $best = $name -}}{{- $score = $alike -}}{{- end -}}
{{- end -}}
{{- /* as a dependency the chart gets its condition's key, and what its parent has under global for others */ -}}
{{- $asked := printf "%s%s" .path $key -}}
{{- $foreign := or (eq $asked "enabled") (and (eq .path "global.") (lt $score 80)) -}}
{{- if not (and $foreign (not .root.Chart.IsRoot)) -}}
{{- $there := list -}}
{{- $part := splitList "." .path | first -}}
{{- $job := has $part (list "pytorchjob" "mpijob" "trainjob") -}}
{{- $near := ternary "global.training." (printf "%s." $part) $job -}}
{{- $all := get $book.where $key | default (get $book.aliases $key) | default list -}}
{{- range $all -}}{{- if hasPrefix $near . -}}{{- $there = append $there . -}}{{- end -}}{{- end -}}
{{- if not $there -}}{{- $there = $all -}}{{- end -}}
{{- if gt (len $there) 3 -}}{{- $there = slice $there 0 3 -}}{{- end -}}
{{- $asked }} is not a key of this chart
{{- if and $best (or (gt $score 69) (not $there)) -}}: did you mean {{ $best }}?
{{- else if $there -}}: write {{ join " or " $there }}
{{- $own := first $there | replace "global.training." (printf "%s.training." $part) -}}
{{- if and $job (not (has $own (list (first $there) $asked))) -}}, or {{ $own }} for this job alone{{- end -}}.
{{- else -}}. Its map has {{ keys (omit .known "~") | sortAlpha | join ", " }}.
{{- end -}}
{{- end -}}
{{- end -}}

{{/* How alike two words are, in percent of their pairs of letters. Call with a list of both. */}}
{{- define "trainyard.alike" -}}
{{- $one := first . | lower | replace "_" "" | replace "-" "" -}}
{{- $other := last . | lower | replace "_" "" | replace "-" "" -}}
{{- if eq $one $other -}}100
{{- else if lt (min (len $one) (len $other)) 2 -}}0
{{- else -}}
{{- $same := 0 -}}
{{- range $start := untilStep 0 (int (sub (len $one) 1)) 1 -}}
{{- if contains (substr $start (int (add $start 2)) $one) $other -}}{{- $same = add $same 1 -}}{{- end -}}
{{- end -}}
{{- div (mul 200 $same) (sub (add (len $one) (len $other)) 2) -}}
{{- end -}}
{{- end -}}
