{{/*
What is wrong with the names and texts of the values, a line each. files/keys.json, which hack/schemas/generate generates from the
annotated values, holds the tree of all keys: a key has a map of further keys, `#NAME` for a tree that several places share, `=FORMAT` for a
text of that format, `[]=FORMAT` for a list of them, `[]env` for environment variables, `[]{}` for a list of maps, `[]` for any list, `{}text` for a
map of texts, `{}=FORMAT` for labels, whose texts have that format, `{}` for any map, 2 for a number, 3 for a whole one, 4 for true or false, or 1 for what only
the schema checks. A key that begins with `x-` at the top is the user's own, as for anchors of YAML.
*/}}
{{- define "trainyard.keyErrors" -}}
{{- $book := .Files.Get "files/keys.json" | fromJson -}}
{{- $values := dict -}}
{{- range $key, $value := .Values -}}{{- if not (hasPrefix "x-" $key) -}}{{- $_ := set $values $key $value -}}{{- end -}}{{- end -}}
{{- include "trainyard.walk" (dict "values" $values "known" $book.keys "path" "" "book" $book "root" .) -}}
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
{{ include "trainyard.unknown" (dict "key" $key "value" $value "path" $.path "known" $.known "book" $.book "root" $.root) }}
{{- else if kindIs "float64" $shape -}}
{{- if eq $shape 4.0 }}{{ include "trainyard.switch" (dict "value" $value "path" $path) }}
{{- else if gt $shape 1.0 }}{{ include "trainyard.number" (dict "value" $value "path" $path "whole" (eq $shape 3.0)) }}{{ end -}}
{{- else -}}
{{- if and (kindIs "string" $shape) (hasPrefix "#" $shape) -}}{{- $shape = get $.book.shared (trimPrefix "#" $shape) -}}{{- end -}}
{{- if or (kindIs "map" $shape) (hasPrefix "{}" (toString $shape)) -}}
{{- if not (kindIs "map" $value) }}
{{ $path }} is {{ include "trainyard.kind" $value }}: {{ ternary "leave it out, or write" "write" (kindIs "invalid" $value) }} a map{{ with get
  $.book.maps $path | default (get $.book.maps $key) }}, such as {{ . }}{{ end }}.
{{- else if kindIs "map" $shape -}}
{{- include "trainyard.walk" (dict "values" $value "known" $shape "path" (printf "%s." $path) "book" $.book "root" $.root) -}}
{{- else if eq $shape "{}text" -}}
{{- range $name, $text := $value -}}{{- include "trainyard.quoted" (dict "value" $text "path" (printf "%s.%s" $path $name)) -}}{{- end -}}
{{- else if hasPrefix "{}=" $shape -}}
{{- include "trainyard.labels" (dict "labels" $value "path" $path "format" (get $.book.formats (trimPrefix "{}=" $shape))) -}}
{{- end -}}
{{- else if hasPrefix "=" $shape -}}
{{- $format := get $.book.formats (trimPrefix "=" $shape) -}}
{{- if not (and (kindIs "string" $value) (regexMatch $format.pattern $value)) -}}
{{- include "trainyard.text" (dict "value" $value "path" $path "format" $format) -}}
{{- end -}}
{{- else if kindIs "slice" $value -}}
{{- range $index, $item := $value -}}
{{- $at := printf "%s[%d]" $path $index -}}
{{- if and (has $shape (list "[]env" "[]{}")) (not (kindIs "map" $item)) }}
{{ $at }} is {{ include "trainyard.kind" $item }}{{ if kindIs "string" $item }} ({{ $item | trunc 50 | quote }}){{ end }}: write a map{{ with get
  $.book.lists $key }}; the list is such as {{ . }}{{ end }}.
{{- else if eq $shape "[]env" -}}
{{- if hasKey $item "value" -}}
{{- include "trainyard.quoted" (dict "value" $item.value "path" (printf "%s.value (of %v)" $at $item.name) "option" (printf "%s.value" $at)) -}}
{{- end -}}
{{- else -}}
{{- include "trainyard.text" (dict "value" $item "path" $at "format" (get $.book.formats (trimPrefix "[]=" $shape))) -}}
{{- end -}}
{{- end -}}
{{- else }}
{{ $path }} is {{ include "trainyard.kind" $value }}: write a list{{ with get $.book.lists $key }}, such as {{ . }}{{ end }}.
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What is wrong with a text that may be any, if anything: a number, or true, without quotes. Call with a dict: value, path. */}}
{{- define "trainyard.quoted" -}}
{{- if kindIs "invalid" .value }}
{{ .path }} is null: leave it out, or write "".
{{- else if or (kindIs "map" .value) (kindIs "slice" .value) }}
{{ .path }} is {{ include "trainyard.kind" .value }}: write a text{{ include "trainyard.dotted" (list .path .value) }}.
{{- else if not (kindIs "string" .value) -}}
{{- $text := toString .value -}}
{{- if kindIs "float64" .value -}}{{- if eq (floor .value) .value -}}{{- $text = toString (int64 .value) -}}{{- end -}}{{- end }}
{{ .path }} is {{ ternary $text (printf "a number (%s)" $text) (kindIs "bool" .value) }}: put it in quotes, {{ $text | quote
  }}, or on the command line use --set-string.
{{- end -}}
{{- end -}}

{{/*
How to write a name with dots on the command line, where Helm made maps of one: `--set labels.example.com/team=a` is {example: {com/team: a}}.
Nothing for other values. Call with a list: path, value.
*/}}
{{- define "trainyard.dotted" -}}
{{- $name := first . -}}
{{- $inner := last . -}}
{{- range until 9 -}}
{{- if kindIs "map" $inner -}}
{{- if eq (len $inner) 1 -}}
{{- $name = printf "%s\\.%s" $name (keys $inner | first) -}}
{{- $inner = values $inner | first -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (contains "/" $name) (not (kindIs "map" $inner)) }}; on the command line a dot within a name is \., as in --set '{{ $name }}={{ $inner }}'
{{- end -}}
{{- end -}}

{{/* What is wrong with the names and texts of labels, a line each. Call with a dict: labels, path, format (of their texts). */}}
{{- define "trainyard.labels" -}}
{{- range $name, $text := .labels -}}
{{- if not (regexMatch "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$" $name) }}
{{ $.path }} has {{ $name | trunc 200 | quote }}: write the name of a label, such as team or example.com/team.
{{- else if not (kindIs "string" $text) -}}
{{- include "trainyard.quoted" (dict "value" $text "path" (printf "%s.%s" $.path $name)) -}}
{{- else if not (regexMatch $.format.pattern $text) -}}
{{- include "trainyard.text" (dict "value" $text "path" (printf "%s.%s" $.path $name) "format" $.format) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What is wrong with what may be true or false, if anything. Call with a dict: value, path. */}}
{{- define "trainyard.switch" -}}
{{- if kindIs "string" .value -}}
{{- $on := has (lower .value) (list "true" "yes" "on" "1" "enabled") }}
{{ .path }} is a text ({{ .value | trunc 50 | quote }}): write {{ $on }}{{ if not (or $on (has (lower .value) (list "false" "no" "off" "0" "disabled" ""
  ))) }} or true{{ end }} without quotes.
{{- else if not (kindIs "bool" .value) }}
{{ .path }} is {{ include "trainyard.kind" .value }}: write true or false.
{{- end -}}
{{- end -}}

{{/* What is wrong with a number, if anything; config's may be text, as Helm's --set writes 0.1. Call with a dict: value, path, whole. */}}
{{- define "trainyard.number" -}}
{{- $typed := and (kindIs "string" .value) (regexMatch "^[-+]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][-+]?[0-9]+)?$" .value) -}}
{{- $number := ternary (float64 (toString .value)) .value (and $typed (contains ".config." .path)) -}}
{{- $units := dict "s" 1 "m" 60 "h" 3600 "d" 86400 -}}
{{- $timed := and (regexMatch "(?i)(wait|seconds\\w*|timeout|gpuMemoryTest)$" .path) (kindIs "string" .value) -}}
{{- if and $timed (regexMatch "^[0-9]{1,6}[smhd]$" (toString .value)) }}
{{ .path }} is {{ .value }}: write it in seconds, {{ mul (regexFind "^[0-9]+" .value | int64) (get $units (regexFind "[smhd]$" .value)) }}.
{{- else if kindIs "string" $number }}
{{ .path }} is a text ({{ .value | trunc 50 | quote }}): write {{ ternary "it without quotes" (ternary "seconds, as a number" "a number"
  $timed) $typed }}{{ if $typed }}; on the command line, --set-json {{ .path }}={{ .value }}{{ end }}.
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
{{ $.path }} is {{ include "trainyard.kind" $.value }}{{ if and $number (contains "quantity of bytes" .say)
  }} ({{ $text }}): write {{ .say }}{{ else if $number }} ({{ $text }}): put it in quotes, or on the command line use --set-string{{ else
  }}: write {{ .say }}{{ end }}.
{{- else if not (or (regexMatch .pattern $text) (and $number (eq (toString .numbers) "any"))) }}
{{- $unslashed := trimSuffix "/" $text }}
{{- $tag := regexReplaceAll "@sha256:.*$" $text "" }}
{{ $.path }} is {{ $text | trunc 200 | quote }}: write {{ .say }}
{{- if and (ne $text $unslashed) (regexMatch .pattern $unslashed) }}, without the slash at its end{{ end }}
{{- if and (ne $text $tag) (regexMatch .pattern $tag) }}, and the digest in image.digest of each part{{ end }}
{{- if contains "{{" $text }}; these values are no templates, as those of extraObjects are{{ end }}.
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
An unknown key, and what was probably meant, the likeliest first: the same path within or without `global`, a key with other letter case, one of the
same part with that name, what people mean by a name that other charts have, a similar key of the same map, or keys elsewhere with that name, those
for all parts alone where there are some, then those of jobs, and the least nested first. Call with a dict: key, value, path, known, book, root.
*/}}
{{- define "trainyard.unknown" -}}
{{- $key := .key -}}
{{- $known := omit .known "~" "common" -}}
{{- $book := .root.Files.Get "files/where.json" | fromJson -}}
{{- $best := "" -}}
{{- $score := 44 -}}
{{- range $name, $_ := $known -}}
{{- $alike := include "trainyard.alike" (list $key $name) | int -}}
{{- if gt $alike $score -}}{{- $best = $name -}}{{- $score = $alike -}}{{- end -}}
{{- end -}}
{{- /* as a dependency the chart gets its condition's key, what its parent has under global for others, and, in a folder and not in a package, the
values of the library that its parts hold */ -}}
{{- $asked := printf "%s%s" .path $key -}}
{{- $others := and (hasPrefix "global." .path) (not (hasPrefix "global.training." .path)) -}}
{{- $foreign := or (eq $asked "enabled") (eq $key "common") (and $others (lt $score 80)) -}}
{{- if not (and $foreign (not .root.Chart.IsRoot)) -}}
{{- $part := splitList "." .path | first -}}
{{- $job := has $part (list "pytorchjob" "mpijob" "trainjob") -}}
{{- $own := has $part (list "dataset" "evaluate" "filebrowser" "secrets" "storage") -}}
{{- /* deep in the values the same name elsewhere means something else, unless it is in a map of the same name, too */ -}}
{{- $steps := initial (splitList "." (trimPrefix "global." .path)) -}}
{{- $deep := and (gt (len $steps) 1) (not (has (last $steps) (list "config" "launcher" "training"))) -}}
{{- $below := list -}}
{{- $shared := list -}}
{{- $trained := list -}}
{{- $ofJobs := list -}}
{{- $elsewhere := list -}}
{{- range $length := untilStep 1 9 1 -}}
{{- range get $book.where $key | default list -}}
{{- if eq $length (len (splitList "." .)) -}}
{{- $like := or (not $deep) (hasSuffix (printf ".%v.%s" (last $steps) $key) .) -}}
{{- if hasPrefix $.path . -}}{{- $below = append $below . -}}{{- end -}}
{{- if and $like (hasPrefix "global." .) -}}{{- $shared = append $shared . -}}{{- end -}}
{{- if and $like (not $own) -}}
{{- if regexMatch "^(pytorchjob|mpijob|trainjob)\\." . -}}{{- $ofJobs = append $ofJobs . -}}{{- else -}}{{- $elsewhere = append $elsewhere . -}}{{- end -}}
{{- end -}}
{{- if and $job (hasPrefix "global.training." .) (not (hasPrefix "mpijob.launcher." $.path)) -}}{{- $trained = append $trained . -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $elsewhere = concat $ofJobs $elsewhere -}}
{{- /* what other charts call it: here, if the map has it, as one that begins with a dot always is */ -}}
{{- $meant := list -}}
{{- $beside := list -}}
{{- range without (get $book.aliases $key | default list) (trimSuffix "." .path) -}}
{{- $here := regexReplaceAll "^(?:global[.]training)?[.]([^.]+)$" . "${1}" -}}
{{- if and (ne $here .) (hasKey $known $here) -}}
{{- $meant = append $meant (printf "%s%s" $.path $here) -}}
{{- else if not (hasPrefix "." .) -}}
{{- $meant = append $meant . -}}
{{- end -}}
{{- end -}}
{{- range $meant -}}{{- if hasPrefix $.path . -}}{{- $beside = append $beside . -}}{{- end -}}{{- end -}}
{{- $top := has .path (list "" "global.") -}}
{{- if not $top -}}{{- $meant = $beside | default $meant -}}{{- end -}}
{{- $near := ternary ($trained | default $below) ($below | default $trained) (and $job (eq .path (printf "%s." $part))) -}}
{{- if $top -}}{{- $near = list -}}{{- end -}}
{{- $there := $near | default $meant | default $shared | default $elsewhere -}}
{{- /* what belongs under global, or does not */ -}}
{{- $twin := ternary (trimPrefix "global." $asked) (printf "global.%s" $asked) (hasPrefix "global." $asked) -}}
{{- if not (include "trainyard.isKey" (list $.book $twin)) -}}{{- $twin = "" -}}{{- end -}}
{{- if $twin -}}{{- $there = ternary (prepend (without $there $twin) $twin) (list $twin) $top -}}{{- end -}}
{{- if gt (len $there) 3 -}}{{- $there = slice $there 0 3 -}}{{- end -}}
{{- $asked }} is not a key of this chart
{{- if get $book.notes $key -}}: {{ get $book.notes $key }}.
{{- else if include "trainyard.dotted" (list $asked .value) -}}{{ include "trainyard.dotted" (list $asked .value) }}.
{{- else if and $best (not $twin) (or (eq $score 100) (and (gt $score 69) (not (and $top $meant))) (not $there)) -}}: did you mean {{ $best }}?
{{- else if $there -}}: write {{ join " or " $there }}
{{- $own := first $there | replace "global.training." (printf "%s.training." $part) -}}
{{- if and $job (not (has $own (list (first $there) $asked))) -}}, or {{ $own }} for this job alone{{- end -}}.
{{- else -}}. Its map has {{ keys $known | sortAlpha | join ", " }}.
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Something, if a dotted path is a key of the chart. Call with a list: book, path. */}}
{{- define "trainyard.isKey" -}}
{{- $book := first . -}}
{{- $shape := $book.keys -}}
{{- range splitList "." (last .) -}}
{{- if and (kindIs "string" $shape) (hasPrefix "#" (toString $shape)) -}}{{- $shape = get $book.shared (trimPrefix "#" $shape) -}}{{- end -}}
{{- if kindIs "map" $shape -}}{{- $shape = get $shape . -}}{{- else -}}{{- $shape = "" -}}{{- end -}}
{{- end -}}
{{- if $shape -}}yes{{- end -}}
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
