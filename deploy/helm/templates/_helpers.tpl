{{- define "fencepost.name" -}}
{{- printf "%s-worker" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "fencepost.selector" -}}
app.kubernetes.io/name: fencepost
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: worker
{{- end -}}

{{- define "fencepost.labels" -}}
{{ include "fencepost.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- /* The files are in a store: "true", or on the volume: "". */ -}}
{{- define "fencepost.inStore" -}}
{{- if or .Values.store.address .Values.store.secret -}}true{{- end -}}
{{- end -}}

{{- define "fencepost.claim" -}}
{{- .Values.volume.claim | default (printf "%s-files" .Release.Name) -}}
{{- end -}}

{{- define "fencepost.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag }}
{{- end -}}
{{- end -}}
