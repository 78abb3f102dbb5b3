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

{{- /* The settings that the pods of workers and of serve have in common. */ -}}
{{- define "fencepost.pod" -}}
{{- with .Values.serviceAccount }}
serviceAccountName: {{ . | quote }}
{{- end }}
automountServiceAccountToken: {{ if .Values.serviceAccount }}true{{ else }}false{{ end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . | quote }}
  {{- end }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The group that can read the volumes: that of the processes, unless podSecurityContext names one, or leaves both to the cluster. */ -}}
{{- define "fencepost.fsGroup" -}}
{{- with .Values.podSecurityContext }}
{{- if and (hasKey . "runAsGroup") (not (hasKey . "fsGroup")) -}}
fsGroup: {{ int .runAsGroup }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "fencepost.env" -}}
- name: FENCEPOST_URL
  valueFrom:
    secretKeyRef: {name: {{ .Values.url.secret | quote }}, key: {{ .Values.url.key | quote }}}
{{- if .Values.store.secret }}
- name: FENCEPOST_STORE
  valueFrom:
    secretKeyRef: {name: {{ .Values.store.secret | quote }}, key: {{ .Values.store.key | quote }}}
{{- else if .Values.store.address }}
- name: FENCEPOST_STORE
  value: {{ .Values.store.address | quote }}
{{- end }}
{{- with .Values.env }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{- define "fencepost.serve" -}}
{{- printf "%s-serve" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "fencepost.serve.selector" -}}
app.kubernetes.io/name: fencepost
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: serve
{{- end -}}

{{- define "fencepost.serve.labels" -}}
{{ include "fencepost.serve.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}
