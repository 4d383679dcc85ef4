{{- define "rl-operator.name" -}}
{{- if contains "rl-operator" .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-rl-operator" (.Release.Name | trunc 38 | trimSuffix "-") -}}
{{- end -}}
{{- end -}}

{{- define "rl-operator.selector" -}}
app.kubernetes.io/name: rl-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "rl-operator.labels" -}}
{{ include "rl-operator.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "rl-operator.subject" -}}
- kind: ServiceAccount
  name: {{ include "rl-operator.name" . }}
  namespace: {{ .Release.Namespace }}
{{- end -}}
