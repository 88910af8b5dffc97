{{- define "tuner.labels" -}}
app.kubernetes.io/name: tuner
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tuner.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "tuner.storage" -}}
{{- with .Values.postgresql -}}
postgresql://{{ .user }}@{{ .host }}:{{ .port }}/{{ .database }}?sslmode={{ .sslmode }}
{{- end }}
{{- end }}

{{- define "tuner.ray" -}}
{{ if .Values.ray.create }}{{ .Release.Name }}-ray-head-svc:6379{{ else }}{{ .Values.ray.address }}{{ end }}
{{- end }}

{{/* The settings of every pod. enableServiceLinks: a Service called tuner would set TUNER_PORT and others. */}}
{{- define "tuner.pod" -}}
enableServiceLinks: false
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "tuner.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/* What libpq reads beside the address: in the service, the token's Job and the backup. */}}
{{- define "tuner.database" -}}
- name: PGPASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .Values.postgresql.existingSecret }}, key: {{ .Values.postgresql.passwordKey }}}
{{- if .Values.postgresql.caSecret }}
- {name: PGSSLROOTCERT, value: /etc/postgresql-ca/ca.crt}
{{- end }}
{{- end }}

{{- define "tuner.caMount" -}}
{{- if .Values.postgresql.caSecret -}}
- {name: postgresql-ca, mountPath: /etc/postgresql-ca, readOnly: true}
{{- end }}
{{- end }}

{{- define "tuner.caVolume" -}}
{{- with .Values.postgresql.caSecret -}}
- name: postgresql-ca
  secret: {secretName: {{ . }}, items: [{key: {{ $.Values.postgresql.caKey | quote }}, path: ca.crt}]}
{{- end }}
{{- end }}
