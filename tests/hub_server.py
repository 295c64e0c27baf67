"""A Hugging Face-compatible hub on loopback, for tests: python3 hub_server.py ROOT LOG

Serves the files of ROOT/NAME as repository ORG/NAME, whatever ORG is: the organisation's name says how the server
misbehaves (see `faults` below; "plain" not at all). Files that end in .safetensors or .jsonl are "large": as on the real
hub they have a SHA-256 and are redirected to another host, here the same process on another port. All others are named by
Git's SHA-1 and served at once. Prints the port; each request is a line "METHOD HOST PATH RANGE TOKEN" of LOG.
"""
import hashlib
import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

root, log = sys.argv[1], open(sys.argv[2], "a", buffering=1)
commit = "c0ffee" + "0" * 34
seen = {}  # how often a path was asked for
lock = threading.Lock()


def content(name, path):
    with open(os.path.join(root, name, path), "rb") as file:
        return file.read()


def large(path):
    return path.endswith((".safetensors", ".jsonl"))


def digest(path, data):
    if large(path):
        return hashlib.sha256(data).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def entry(name, path):
    data = content(name, path)
    result = {"rfilename": path, "size": len(data), "blobId": digest("x", data)}
    if large(path):
        result["lfs"] = {"sha256": digest(path, data), "size": len(data), "pointerSize": 134}
    return result


def listing(org, name):
    base = os.path.join(root, name)
    paths = sorted(os.path.relpath(os.path.join(d, f), base) for d, _, fs in os.walk(base) for f in fs)
    entries = [entry(name, p) for p in paths]
    if org == "climbs":
        entries[0]["rfilename"] = "../../../climbed"
    if org == "absolute":
        entries[0]["rfilename"] = "/tmp/climbed"
    if org == "twice":
        entries.append(entries[0])
    if org == "huge":
        entries[0]["size"] = entries[0].get("lfs", entries[0])["size"] = 10**15
        entries[0].get("lfs", {})["size"] = 10**15
    if org == "negative":
        entries[0]["size"] = -1
        entries[0].get("lfs", {})["size"] = -1
    if org == "nohash":
        entries = [{"rfilename": p} for p in paths]
    sha = {"oddcommit": "../../x", "othercommit": "a" * 40}.get(org, commit)
    return {"id": org + "/" + name, "sha": sha, "siblings": entries}


class Hub(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        headers.setdefault("Content-Length", str(len(body)))
        for key, value in headers.items():
            if value is not None:
                self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        token = self.headers.get("Authorization", "-").replace(" ", ":")
        log.write(f"{self.command} {self.who} {self.path} {self.headers.get('Range', '-')} {token}\n")
        with lock:
            count = seen[self.command + self.path] = seen.get(self.command + self.path, 0) + 1
        path = self.path.split("?")[0]
        kind = "datasets/" if "/datasets/" in path else ""
        try:
            if path.startswith("/api/"):
                org, name = path.split("/")[3:5]
                self.api(org, name, path.split("/revision/")[1], count)
            else:
                parts = path[1:].removeprefix("datasets/").split("/")
                self.file(parts[0], parts[1], parts[3], "/".join(parts[4:]), count, kind)
        except (FileNotFoundError, IndexError, ValueError):
            self.answer(404, b"not found", X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def refuse(self, org, count):
        """The faults that meet every request of an organisation; true where the answer is given."""
        if org == "private" and self.headers.get("Authorization") != "Bearer secret":
            self.answer(401, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        elif org == "gated":
            self.answer(403, b"{}", X_Error_Code="GatedRepo", X_Error_Message="Access is restricted")
        elif org == "missing":
            self.answer(404, b"{}", X_Error_Code="RepoNotFound", X_Error_Message="Repository \x1b[31mnot found")
        elif org == "down":
            self.answer(503, b"{}")
        elif org == "closed":
            self.answer(429, b"{}", Retry_After="100000")
        elif org == "busy" and count <= 2:
            self.answer(429, b"{}", Retry_After="0.2" if count == 1 else "Thu, 01 Jan 1970 00:00:00 GMT")
        else:
            return False
        return True

    def api(self, org, name, revision, count):
        if self.refuse(org, count):
            return
        if org == "renamed":
            return self.answer(307, Location=self.path.replace("renamed/", "plain/"))
        if org == "webpage":
            return self.answer(200, b"<html>Welcome</html>")
        if org == "nested":
            return self.answer(200, b"[" * 100000)
        if revision not in ("main", "v1", commit):
            return self.answer(404, b"{}", X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id")
        if not os.path.isdir(os.path.join(root, name)):
            return self.answer(404, b"{}", X_Error_Code="RepoNotFound")
        self.answer(200, json.dumps(listing(org, name)).encode())

    def file(self, org, name, revision, path, count, kind):
        data = content(name, path)
        if self.who == "cdn":
            return self.body(org, data, count)
        if self.refuse(org, count):
            return
        if org == "renamed":
            return self.answer(307, Location=self.path.replace("renamed/", "plain/"))
        if org == "loop":
            return self.answer(302, Location=self.path)
        etag = {"oddetag": "../../../climbed", "nohash": f"v1-{len(data)}-{len(path)}"}.get(org, digest(path, data))
        own = "b" * 40 if org == "movedcommit" else commit
        if org == "wronghead":
            etag = "d" * len(etag)
        if large(path) and org != "nohash":
            size = len(data) - 1 if org == "wrongsize" else len(data)
            to = f"http://127.0.0.1:{cdn.server_port}{self.path}"
            to = {"outside": "http://example.com/x", "downgrade": "ftp://127.0.0.1/x", "user": "https://me:pw@127.0.0.1/x"}.get(org, to)
            return self.answer(302, Location=to, ETag='"x"', X_Linked_Etag=f'"{etag}"', X_Linked_Size=str(size), X_Repo_Commit=own)
        self.answer(200, data, ETag=f'W/"{etag}"' if org == "nohash" else f'"{etag}"', X_Repo_Commit=own)

    def body(self, org, data, count):
        """A large file, by the host that the hub sends us to."""
        if org == "wronghash" or (org == "wrongonce" and count == 1):
            data = bytes([data[0] ^ 1]) + data[1:]
        total, first = len(data), 0
        asked = self.headers.get("Range")
        if asked and org != "noranges":
            first = int(asked.removeprefix("bytes=").split("-")[0])
            if first >= total:
                return self.answer(416, Content_Range=f"bytes */{total}")
        part = data[first:]
        told = first + 7 if org == "badrange" and asked and count == 2 else first
        status = 206 if asked and org != "noranges" else 200
        headers = {"Content_Range": f"bytes {told}-{total - 1}/{total}"} if status == 206 else {}
        if org == "expired" and count == 1:
            return self.answer(403, b"expired")
        if org == "longer":
            self.send_response(status)
            self.end_headers()
            self.wfile.write(part + b"more")
            self.close_connection = True
            return
        stops = org in ("cut", "badrange", "noranges", "slow", "forever") and (count <= (1 if org == "slow" else 3) or org == "forever")
        self.send_response(status)
        self.send_header("Content-Length", str(len(part)))
        for key, value in headers.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if org == "trickle":
            for at in range(0, len(part), 32768):
                self.wfile.write(part[at : at + 32768])
                time.sleep(0.05)
        elif stops and org == "forever":
            self.close_connection = True
        elif stops:
            self.wfile.write(part[: max(1, total // 5)])
            self.wfile.flush()
            if org == "slow":
                time.sleep(3)
            self.close_connection = True
        else:
            self.wfile.write(part)


def serve(who):
    server = ThreadingHTTPServer(("127.0.0.1", 0), type(who, (Hub,), {"who": who}))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


cdn, hub = serve("cdn"), serve("hub")
print(hub.server_port, flush=True)
sys.stdin.read()  # until whoever started it is gone
