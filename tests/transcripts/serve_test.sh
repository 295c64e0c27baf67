#!/usr/bin/env bash
# recipes/serve.lua by curl: keys, a whole and a streamed answer, what is refused, and its end by SIGTERM under load.
set -euo pipefail
if ! command -v curl >/dev/null; then
  echo "SKIPPED serve: no curl here"
  exit 0
fi
work=$(mktemp -d)
server=
trap '[[ -z $server ]] || kill -9 "$server" 2>/dev/null; rm -rf "$work"' EXIT
fail() { echo "serve: $*"; [[ ! -s $work/log ]] || tail -5 "$work/log"; exit 1; }
has() { [[ $1 == *"$2"* ]] || fail "expected '$2' in: $1"; }

start() {
  : >"$work/out"  # else the address of the server before, or no file, until the new one has begun
  "$QENG" recipes/serve.lua --port 0 --threads 2 --log "$work/access" "$@" >"$work/out" 2>"$work/log" &
  server=$!
  for _ in $(seq 200); do
    url=$(sed -n 's#.* answers at \(https\?://[^ ]*\)/v1$#\1#p' "$work/out")
    [[ -z $url ]] || return 0
    kill -0 "$server" 2>/dev/null || fail "it ended: $(cat "$work/log")"
    sleep 0.1
  done
  fail "it does not answer"
}
ask() { curl -sS -m 60 "$@"; }
status() { curl -sS -m 60 -o /dev/null -w '%{http_code}' "$@"; }
end() {
  kill -TERM "$server"
  local code=0
  wait "$server" || code=$?
  server=
  [[ $code == 0 ]] || fail "SIGTERM: status $code"
}
json=(-H 'Content-Type: application/json')
chat='{"messages": [{"role": "user", "content": "Where is the hat?"}], "max_tokens": 12, "temperature": 0'

# Without a key it stays on this machine.
! "$QENG" recipes/serve.lua --host 0.0.0.0 --port 0 >"$work/refused" 2>&1 || fail "it listens everywhere without a key"
has "$(cat "$work/refused")" '--no-auth'

! "$QENG" recipes/serve.lua --port 0 --origin '*' >"$work/refused" 2>&1 || fail "it takes an origin that is none"
has "$(cat "$work/refused")" 'https://example.org'

# Models of a folder, none of which is loaded yet.
mkdir "$work/models"
ln -s "$PWD/recipes/tiny" "$work/models/tiny"
start --models "$work/models"
has "$(ask "$url/v1/chat/completions" "${json[@]}" -d "$chat, \"model\": \"tiny\"}")" '"object":"chat.completion"'
end

start
whole=$(ask "$url/v1/chat/completions" "${json[@]}" -d "$chat}")
has "$whole" '"object":"chat.completion"'
text=$(sed 's/.*"content":"\([^"]*\)".*/\1/' <<<"$whole")
streamed=$(ask -N "$url/v1/chat/completions" "${json[@]}" -d "$chat, \"stream\": true}")
has "$streamed" 'data: [DONE]'
joined=$(sed -n 's/.*"delta":{"content":"\([^"]*\)".*/\1/p' <<<"$streamed" | tr -d '\n')
[[ $joined == "$text" ]] || fail "streamed '$joined', whole '$text'"
has "$(ask "$url/v1/chat/completions" "${json[@]}" -d '{')" '"type":"invalid_request_error"'
[[ $(status "$url/none") == 404 ]] || fail "a path that there is not"
[[ $(status -H 'Host: evil.example' "$url/health") == 421 ]] || fail "a name of another machine"
[[ $(status -H 'Origin: https://evil.example' "$url/health") == 403 ]] || fail "a page of another origin"
has "$(ask "$url/metrics")" 'qeng_requests_total{method="POST",path="/v1/chat/completions",status="200"} 2'
end
! grep -q 'Where is' "$work/access" || fail "a prompt in the log"

# With keys: every path but /health asks for one.
start --api-key one,two
[[ $(status "$url/health") == 200 ]] || fail "/health asks for a key"
for path in / /ready /metrics /v1/models /v1/chat/completions /none /openapi.json; do
  [[ $(status "$url$path") == 401 && $(status -H 'Authorization: Bearer three' "$url$path") == 401 ]] || fail "$path without a key"
done
[[ $(status -H 'Authorization: Bearer two' "$url/v1/models") == 200 ]] || fail "a bearer's key"
[[ $(status -H 'x-api-key: one' "$url/v1/models") == 200 ]] || fail "x-api-key"
[[ $(status -u any:one "$url/v1/models") == 200 ]] || fail "a browser's password"

# SIGTERM under load: each of 16 streams that has begun ends with [DONE] or is told.
for i in $(seq 16); do
  ask -N -H 'x-api-key: one' "$url/v1/chat/completions" "${json[@]}" \
    -d "${chat/12/200}, \"ignore_eos\": true, \"stream\": true}" >"$work/stream$i" &
done
# 32 tokens are there, and all have connected: 17 with who asks.
for _ in $(seq 200); do
  [[ $(cat "$work"/stream* | grep -c '"content"') -lt 32 ||
    ! $(ask -H 'x-api-key: one' "$url/metrics") =~ qeng_connections\ 17 ]] || break
  sleep 0.05
done
end
for i in $(seq 16); do
  grep -q 'data: \[DONE\]\|"error"' "$work/stream$i" || fail "stream $i was cut off: $(tail -c 200 "$work/stream$i")"
done
