{{/* The Deployment of the page. */}}
{{- define "filebrowser.deployment" -}}
{{- $secret := include "filebrowser.secret" . -}}
{{- $pod := include "filebrowser.pod" . | fromJson -}}
{{- $own := include "common.partSelector" . | fromJson -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "filebrowser.name" . }}
  labels:
    {{- include "common.labels" . | nindent 4 }}
spec:
  replicas: 1
  # Never two at a time: a claim that one node may have would keep the second from starting
  strategy:
    type: Recreate
  selector:
    matchLabels:
      {{- include "filebrowser.selector" . | nindent 6 }}
  template:
    metadata:
      {{- include "common.podMetadata" (dict "root" . "pod" $pod) | nindent 6 }}
    spec:
      {{- include "common.podHead" (dict "root" . "pod" $pod "scheduling" $pod.scheduling "own" $own) | nindent 6 }}
      terminationGracePeriodSeconds: 10
      {{- with include "common.sidecars" $pod | trim }}
      initContainers:
        {{- . | nindent 8 }}
      {{- end }}
      containers:
        - name: filebrowser
          image: {{ include "common.image" . | quote }}
          imagePullPolicy: {{ .Values.global.image.pullPolicy }}
          {{- with .Values.command }}
          command:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- with .Values.args }}
          args:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          env:
            - name: HOME
              value: /tmp
            - name: FILEBROWSER_PORT
              value: {{ int .Values.port | quote }}
            - name: FILEBROWSER_WRITABLE
              value: {{ .Values.writable | quote }}
            {{- with .Values.passwordEnv }}
            - name: {{ . | quote }}
              valueFrom:
                secretKeyRef:
                  name: {{ $secret | quote }}
                  key: password
            {{- end }}
            {{- with $pod.env }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
          {{- with $pod.envFrom }}
          envFrom:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            - name: http
              containerPort: {{ int .Values.port }}
              protocol: TCP
          # A probe that asks for no page needs no password, with any server
          readinessProbe:
            tcpSocket:
              port: http
            periodSeconds: 2
          livenessProbe:
            tcpSocket:
              port: http
            periodSeconds: 20
            failureThreshold: 6
          resources:
            {{- include "common.quantities" .Values.resources | nindent 12 }}
          {{- include "common.lastWord" . | nindent 10 }}
          securityContext:
            {{- include "common.containerSecurity" "" | nindent 12 }}
          volumeMounts:
            {{- include "filebrowser.mount" (list . "data" true) | nindent 12 }}
            {{- include "filebrowser.mount" (list . "results" (not .Values.writable)) | nindent 12 }}
            - name: password
              mountPath: /etc/filebrowser
              readOnly: true
            - name: tmp
              mountPath: /tmp
            {{- with $pod.extraVolumeMounts }}
            {{- toYaml . | nindent 12 }}
            {{- end }}
      volumes:
        {{- include "common.claimVolume" (list . "data") | nindent 8 }}
        {{- include "common.claimVolume" (list . "results") | nindent 8 }}
        - name: password
          secret:
            secretName: {{ $secret | quote }}
            defaultMode: 288  # 0440
            items:
              - key: password
                path: password
        # In memory, since sessions lie there
        - name: tmp
          emptyDir:
            medium: Memory
            sizeLimit: 64Mi
        {{- with $pod.extraVolumes }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
{{- end -}}
