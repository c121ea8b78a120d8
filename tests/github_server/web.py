"""HTTP: requests in, answers out, pages, permissions, faults."""

from __future__ import annotations

import json
import re
import select
import socket
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from github_server import description, routing
from github_server.routing import Answer, Call, Listing, Refused, Route

if TYPE_CHECKING:
    from github_server.faults import Fault
    from github_server.hub import Hub

LEVELS = ("none", "read", "write")


class Server(ThreadingHTTPServer):
    """One of the two hosts: the API's, or that of the files."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, hub: Hub, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.hub = hub
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients may go away."""


class Handler(BaseHTTPRequestHandler):
    """What both hosts share."""

    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: the hub keeps the calls."""

    def read_body(self) -> bytes:
        """The whole body."""
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def reply(self, status: int, body: bytes, headers: dict[str, str], short: int = 0) -> None:
        """One write, so that no answer waits for an acknowledgement; `short`: bytes that are
        promised and never come.
        """
        phrase = self.responses.get(status, ("",))[0]
        lines = [f"HTTP/1.1 {status} {phrase}", f"Content-Length: {len(body) + short}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.close_connection = bool(short)
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)

    def hang(self) -> None:
        """No answer until the client gives up or the hub closes."""
        self.close_connection = True
        while not self.server.hub.closed.is_set():
            if select.select([self.connection], [], [], 0.05)[0] and not self.connection.recv(
                1, socket.MSG_PEEK
            ):
                return


class Store(Handler):
    """The host of files: no token may come here."""

    def do_GET(self) -> None:
        """A signed address."""
        hub = self.server.hub
        if "Authorization" in self.headers:
            hub.violations.append("the token was sent to another host than the API's")
            return self.reply(400, b"<Error>no authorization here</Error>", {})
        found = re.fullmatch(r"/files/(\d+)\?sig=s3cret", self.path)
        content = hub.files.get(int(found[1])) if found else None
        fault = hub.fault(f"GET files/{found[1]}" if found else "GET files")
        if fault is not None:
            return answer_fault(self, fault, Answer(content or b""))
        if content is None:
            return self.reply(404, b"<Error>BlobNotFound</Error>", {})
        return self.reply(200, content, {"Content-Type": "application/zip"})


class Api(Handler):
    """GitHub's API."""

    def do_GET(self) -> None:
        """Any method."""
        hub = self.server.hub
        content = self.read_body()
        split = urlsplit(self.path)
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        relative = hub.relative(split.path)
        label = f"{self.command} {relative}"
        hub.run_hooks(label)
        fault = hub.fault(label)
        answer = None
        if fault is None or fault.effect:
            with hub.lock:
                try:
                    answer = answer_call(self, split.path, relative, query, content)
                except Exception:
                    hub.violations.append(f"{label}: {traceback.format_exc()}")
                    answer = Answer({"message": "the stand-in failed"}, 500)
        status = fault.status if fault else answer.status if answer else 0
        hub.log(self.command, relative, status, query, content, dict(self.headers.items()))
        if fault is not None:
            return answer_fault(self, fault, answer or Answer())
        assert answer is not None
        return send(self, answer)

    do_POST = do_PATCH = do_PUT = do_DELETE = do_GET  # noqa: N815


def encoded(answer: Answer) -> bytes:
    """The bytes of a body."""
    body = answer.body
    if body is None or isinstance(body, bytes):
        return body or b""
    return json.dumps(body).encode()


def send(handler: Handler, answer: Answer) -> None:
    """An answer as it is."""
    body = answer.body
    content = (
        b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    )
    headers = {"Content-Type": "application/json; charset=utf-8"} | answer.headers
    handler.reply(answer.status, content, headers)


def answer_fault(handler: Handler, fault: Fault, answer: Answer) -> None:
    """What arrives instead of the answer."""
    match fault.status:
        case "timeout":
            handler.hang()
        case "drop":
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)
        case "short":
            handler.reply(200, b'{"id"', {"Content-Type": "application/json"}, short=100)
        case int(status):
            body = fault.body
            if body is None:
                body = json.dumps({"message": fault.message}).encode()
            handler.reply(status, body, {"Content-Type": "application/json"} | fault.headers)


def answer_call(
    handler: Handler, path: str, relative: str, query: dict[str, str], content: bytes
) -> Answer:
    """From the state, checked in both directions."""
    hub = handler.server.hub
    actor = hub.actor(handler.headers.get("Authorization", ""))
    if actor is None:
        return refusal(Refused(401, "Bad credentials"))
    try:
        body = json.loads(content) if content else {}
    except ValueError:
        return refusal(Refused(400, "Problems parsing JSON"))
    if path == hub.graphql_path:
        from github_server import graphql

        return graphql.answer(hub.state, actor, body)
    repository = hub.repository_of(path)
    found = routing.find(handler.command, relative) if repository else None
    if repository is None or found is None:
        if repository is not None:
            hub.violations.append(f"{handler.command} {relative}: no such call in the stand-in")
        return refusal(Refused(404, "Not Found"))
    route, values = found
    described = route.described(repository.full_name, values)
    try:
        made = description.request(handler.command, route.template, described, query, content)
    except description.Violation as error:
        hub.violations.append(str(error))
        return refusal(Refused(422, f"Invalid request: {error}"))
    missing = lacking(hub.grants, route.needs) if actor is hub.state.bot else False
    call = Call(
        hub.state, repository, actor, values, query, body, hub.url, hub.store.url,
        handler.headers.get("Accept", ""),
    )  # fmt: skip
    try:
        if missing:
            raise Refused(403, "Resource not accessible by integration")
        result = route.function(call)
        answer = page(result, call, hub.url, path) if isinstance(result, Listing) else result
    except Refused as error:
        answer = refusal(error)
        if missing:
            answer.headers["X-Accepted-GitHub-Permissions"] = route.needs
    verify(hub, made, route, answer)
    answer.headers = {"X-RateLimit-Remaining": "4999", "X-GitHub-Request-Id": "0"} | answer.headers
    return answer


def verify(hub: Hub, made: description.Request, route: Route, answer: Answer) -> None:
    """An answer that GitHub wouldn't give is a fault of the stand-in: the test fails."""
    body = answer.body
    content = (
        b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    )
    try:
        description.check_response(made, route.template, answer.status, content, answer.headers)
    except description.Violation as error:
        hub.violations.append(f"answer of the stand-in: {error}")


def refusal(error: Refused) -> Answer:
    """As GitHub words it."""
    return Answer(error.body, error.status)


def lacking(grants: dict[str, str] | None, needs: str) -> bool:
    """Whether none of the alternatives is granted; None grants everything."""
    if grants is None:
        return False
    for group in needs.split("; "):
        pairs = [one.split("=") for one in group.split(",")]
        if all(
            name == "metadata" or LEVELS.index(grants.get(name, "none")) >= LEVELS.index(level)
            for name, level in pairs
        ):
            return False
    return True


def page(listing: Listing, call: Call, api: str, path: str) -> Answer:
    """One page, with the links to its neighbours."""
    per_page = min(100, int(call.query.get("per_page", 30)))
    number = max(1, int(call.query.get("page", 1)))
    last = max(1, -(-len(listing.elements) // per_page))
    chosen = listing.elements[(number - 1) * per_page : number * per_page]
    body: Any = [listing.form(one) for one in chosen]
    if listing.key:
        around = (
            {"total_count": len(listing.elements)} if listing.around is None else listing.around
        )
        body = {**around, listing.key: body}
    links = []
    for name, target in (("prev", number - 1), ("next", number + 1), ("last", last)):
        if 1 <= target <= last and target != number:
            query = urlencode(call.query | {"page": str(target)})
            origin = "{0.scheme}://{0.netloc}".format(urlsplit(api))
            links.append(f'<{origin}{path}?{query}>; rel="{name}"')
    return Answer(body, 200, {"Link": ", ".join(links)} if links else {})
