{{- define "toolhub.name" -}}
{{- .Values.nameOverride | default "tool-hub" | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "toolhub.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains "toolhub" (.Release.Name | replace "-" "") -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-toolhub" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "toolhub.selector" -}}
app.kubernetes.io/name: {{ include "toolhub.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "toolhub.labels" -}}
{{ include "toolhub.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "toolhub.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{- define "toolhub.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "toolhub.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* policy.yaml or sources.yaml of the values: (root, "policy" or "sources"). Text stays as it is written. */}}
{{- define "toolhub.document" -}}
{{- $root := index . 0 -}}{{- $name := index . 1 -}}
{{- $document := (index $root.Values $name).document -}}
{{- if not $document -}}
{{- $root.Files.Get (printf "files/%s.yaml" $name) -}}
{{- else if kindIs "string" $document -}}
{{- $document -}}
{{- else -}}
{{- toYaml $document -}}
{{- end -}}
{{- end -}}

{{/* Where policy.yaml or sources.yaml comes from, as a source of the projected volume: (root, values, name of the file). */}}
{{- define "toolhub.projected" -}}
{{- $root := index . 0 -}}{{- $values := index . 1 -}}{{- $file := index . 2 -}}
{{- if $values.existingSecret -}}
- secret: { name: {{ $values.existingSecret }}, items: [{ key: {{ $file }}, path: {{ $file }} }] }
{{- else -}}
- configMap: { name: {{ $values.existingConfigMap | default (printf "%s-%s" (include "toolhub.fullname" $root) (trimSuffix ".yaml" $file)) }}, items: [{ key: {{ $file }}, path: {{ $file }} }] }
{{- end -}}
{{- end -}}

{{/* toolhub.yaml: what the chart knows, under what settings say. */}}
{{- define "toolhub.settings" -}}
{{- $server := dict
      "listen" "0.0.0.0:50051"
      "mcp" (dict "listen" "0.0.0.0:50052")
      "drain_notice_s" .Values.shutdown.drainNoticeSeconds
      "drain_s" .Values.shutdown.drainSeconds
      "max_connection_age_s" 300 -}}
{{- if .Values.tls.existingSecret -}}
{{- $tls := dict "certificate_file" "/etc/toolhub-tls/tls.crt" "key_file" "/etc/toolhub-tls/tls.key" -}}
{{- if .Values.tls.clientCaSecret -}}{{- $_ := set $tls "client_ca_file" "/etc/toolhub-client-ca/ca.crt" -}}{{- end -}}
{{- $_ := set $server "tls" $tls -}}
{{- else if .Values.tls.spiffe -}}
{{- else if .Values.allowPlaintext -}}
{{- $_ := set $server "allow_plaintext" true -}}
{{- end -}}
{{- if .Values.sharedKeys.existingSecret -}}
{{- $_ := set $server.mcp "state_key_file" "/data/mcp-state.key" -}}
{{- end -}}
{{- $auth := dict "modes" (list "api-key") -}}
{{- if .Values.apiKeys.existingSecret -}}{{- $_ := set $auth "api_keys_file" "/etc/toolhub-keys/api-keys.yaml" -}}{{- end -}}
{{- if .Values.tls.spiffe -}}
{{- $_ := set $auth "modes" (list "spiffe") -}}
{{- $_ := set $auth "spiffe" (dict "workload_api" "unix:///run/spire/sockets/agent.sock") -}}
{{- end -}}
{{- $base := dict
      "data_dir" "/data"
      "server" $server
      "auth" $auth
      "policy" (dict "file" "/etc/toolhub/policy.yaml")
      "sources" (dict "file" "/etc/toolhub/sources.yaml")
      "metrics" (dict "listen" "0.0.0.0:9464")
      "logs" (dict "format" "json") -}}
{{- if .Values.stores.postgres.existingSecret -}}{{- $_ := set $base "stores" (dict "kind" "postgres") -}}{{- end -}}
{{- if .Values.artifacts.existingClaim -}}{{- $_ := set $base "artifacts" (dict "folder" "/artifacts") -}}{{- end -}}
{{- toYaml (mergeOverwrite $base (deepCopy .Values.settings)) -}}
{{- end -}}

{{/* Refuses values that would make a release which does not work, or not safely. */}}
{{- define "toolhub.check" -}}
{{- $several := or (gt (int .Values.replicas) 1) .Values.autoscaling.enabled -}}
{{- $postgres := .Values.stores.postgres.existingSecret -}}
{{- $shares := or $postgres .Values.stores.redis.existingSecret -}}
{{- if not (or .Values.tls.existingSecret .Values.tls.spiffe .Values.allowPlaintext) -}}
{{- fail "API keys would cross the network in the clear: set tls.existingSecret or tls.spiffe, or allowPlaintext=true where a mesh encrypts between pods or the network is trusted." -}}
{{- end -}}
{{- if and .Values.tls.clientCaSecret (not .Values.tls.existingSecret) -}}
{{- fail "tls.clientCaSecret needs tls.existingSecret: certificates of clients are asked for within TLS." -}}
{{- end -}}
{{- if and $several (not $shares) -}}
{{- fail "Several replicas need a shared store: set stores.postgres.existingSecret or stores.redis.existingSecret, or replicas=1 without autoscaling." -}}
{{- end -}}
{{- if and $several $postgres (not .Values.sharedKeys.existingSecret) -}}
{{- fail "Several replicas with one PostgreSQL write one audit log, which one key seals: set sharedKeys.existingSecret (audit.key, plan.key, mcp-state.key)." -}}
{{- end -}}
{{- if and $postgres (not .Values.persistence.enabled) -}}
{{- fail "With PostgreSQL each pod keeps checkpoints of the audit log on its volume, without which it does not start again: leave persistence.enabled=true." -}}
{{- end -}}
{{- if and (not .Values.apiKeys.existingSecret) (not .Values.tls.spiffe) (not (dig "auth" "modes" false .Values.settings)) -}}
{{- fail "Nobody could call: set apiKeys.existingSecret, or settings.auth.modes to something else than api-key." -}}
{{- end -}}
{{- if and .Values.autoscaling.enabled (not (or .Values.autoscaling.cpuPercent .Values.autoscaling.inFlight)) -}}
{{- fail "autoscaling needs something to look at: set autoscaling.cpuPercent or autoscaling.inFlight." -}}
{{- end -}}
{{- $server := default dict .Values.settings.server -}}
{{- if or $server.listen (dig "mcp" "listen" "" $server) (dig "metrics" "listen" "" .Values.settings) .Values.settings.data_dir -}}
{{- fail "settings.server.listen, server.mcp.listen, metrics.listen and data_dir are the chart's: its services, probes and volumes go by them." -}}
{{- end -}}
{{- end -}}
