"""Clients of other languages through a gateway: requests, grpcio, stripe, standardwebhooks.

    clients.py PROGRAM     PROGRAM is the binary `reprise`; tests/run clients makes the environment

Each check starts a service that knows nothing of gateways, a gateway in front of it, and a real client.
"""

import json
import pathlib
import queue
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
import requests
import standardwebhooks
import stripe

PROGRAM = sys.argv[1]
FOLDER = tempfile.TemporaryDirectory(prefix="reprise-clients-")
PATIENCE = 60
POLICY = """
[policy.default]
profile = "synchronous"
backoff = { base = "10ms", cap = "20ms" }
budget = { floor = 10 }
"""


def equal(found, wanted):
    assert found == wanted, f"{found!r} is not {wanted!r}"


class Gateway:
    """A gateway with one upstream. It is ended when its block ends."""

    def __init__(self, upstream, *flags, more=""):
        config = pathlib.Path(FOLDER.name) / f"{threading.get_ident()}.toml"
        config.write_text(f'[upstreams.shop]\nendpoints = ["{upstream}"]\n{more}\n{POLICY}')
        command = [PROGRAM, "gateway", "--config", config, "--listen", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, "--admin", "127.0.0.1:0", "--log", "warn", *flags], stdout=subprocess.PIPE, text=True
        )
        said = [self.process.stdout.readline() for _ in range(2)]
        told = dict(line.strip().split(" on ") for line in said)
        self.url, self.admin = told["listening"], told["admin"]
        self.address = self.url.removeprefix("http://")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        equal(self.process.wait(PATIENCE), 0)


class Service:
    """An HTTP service that answers by a function of the request and its body."""

    def __init__(self, answer):
        self.came = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(handler):
                handler.body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
                self.came.append(handler)
                answer(handler, len(self.came))

            do_GET = do_POST = do

            def reply(handler, status, body=b"", **headers):
                handler.send_response(status)
                for name, value in headers.items():
                    handler.send_header(name.replace("_", "-"), value)
                handler.send_header("content-length", str(len(body)))
                handler.end_headers()
                handler.wfile.write(body)

            def log_message(*_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"


def requests_are_mended_and_executed_once():
    """C-1, I-8: a GET is retried, a POST with a key is executed once."""
    shop = Service(lambda handler, number: handler.reply(503 if number == 1 else 200, b"%d" % number))
    with Gateway(shop.url) as gateway, requests.Session() as session:
        reply = session.get(gateway.url)
        equal((reply.status_code, reply.text), (200, "2"))
        headers = {"authorization": "Bearer ada", "idempotency-key": "k-1"}
        replies = [session.post(gateway.url, json={"item": 7}, headers=headers) for _ in range(2)]
        equal([reply.text for reply in replies], ["3", "3"])
        equal(replies[1].headers["idempotent-replayed"], "true")
        other = session.post(gateway.url, json={"item": 8}, headers=headers)
        equal((other.status_code, other.headers["content-type"]), (422, "application/problem+json"))
        equal(len(shop.came), 3)


def events_are_not_delayed():
    """C-2: each server-sent event is there before the next one is sent."""
    heard = queue.Queue()

    def stream(handler, _):
        handler.send_response(200)
        handler.send_header("content-type", "text/event-stream")
        handler.send_header("connection", "close")
        handler.end_headers()
        for number in range(3):
            handler.wfile.write(b"data: %d\n\n" % number)
            handler.wfile.flush()
            equal(heard.get(timeout=PATIENCE), f"data: {number}")

    shop = Service(stream)
    with Gateway(shop.url) as gateway:
        with requests.get(gateway.url, stream=True, timeout=PATIENCE) as reply:
            lines = [line for line in reply.iter_lines(1, decode_unicode=True) if not (line and heard.put(line))]
        equal([line for line in lines if line], ["data: 0", "data: 1", "data: 2"])


def grpc_calls_and_streams_pass():
    """C-2, C-5, I-10: statuses in trailers, streams as they come, keys on unary calls."""
    calls, heard = [], queue.Queue()

    def balance(request, context):
        calls.append("balance")
        if len(calls) == 1:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not yet")
        return b"balance of " + request

    def pay(request, context):
        calls.append("pay")
        context.set_trailing_metadata((("x-receipt", "r-1"),))
        return b"paid " + request

    def refuse(request, context):
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no such account")

    def talk(requests, context):
        for request in requests:
            yield b"heard " + request

    methods = {
        "Balance": grpc.unary_unary_rpc_method_handler(balance),
        "Pay": grpc.unary_unary_rpc_method_handler(pay),
        "Refuse": grpc.unary_unary_rpc_method_handler(refuse),
        "Talk": grpc.stream_stream_rpc_method_handler(talk),
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("demo.Ledger", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    more = 'http2 = true\npolicy = { profile = "grpc_unary", rules = { idempotent_methods = ["demo.Ledger/Balance"] } }'
    with Gateway(f"http://127.0.0.1:{port}", "--anonymous", "all", more=more) as gateway:
        with grpc.insecure_channel(gateway.address) as channel:
            equal(channel.unary_unary("/demo.Ledger/Balance")(b"ada", timeout=PATIENCE), b"balance of ada")
            equal(calls, ["balance", "balance"])
            pay = channel.unary_unary("/demo.Ledger/Pay")
            for _ in range(2):
                reply, call = pay.with_call(b"7", timeout=PATIENCE, metadata=[("idempotency-key", "k-1")])
                equal((reply, dict(call.trailing_metadata())["x-receipt"]), (b"paid 7", "r-1"))
            equal(calls.count("pay"), 1)
            try:
                channel.unary_unary("/demo.Ledger/Refuse")(b"", timeout=PATIENCE)
                raise AssertionError("it was refused")
            except grpc.RpcError as error:
                equal((error.code(), error.details()), (grpc.StatusCode.FAILED_PRECONDITION, "no such account"))

            def say():
                for word in (b"one", b"two", b"three"):
                    yield word
                    # Not before it was answered.
                    equal(heard.get(timeout=PATIENCE), b"heard " + word)

            answers = []
            for answer in channel.stream_stream("/demo.Ledger/Talk")(say(), timeout=PATIENCE):
                answers.append(answer)
                heard.put(answer)
            equal(answers, [b"heard one", b"heard two", b"heard three"])
    server.stop(None)


def a_payment_sdk_charges_once():
    """C-5, K-2: the SDK's own key passes, and a reply that is lost is no second charge."""
    charges = {}

    def charge(handler, number):
        key = handler.headers["idempotency-key"]
        intent = charges.setdefault(key, {"id": f"pi_{len(charges) + 1}", "object": "payment_intent"})
        if number == 1:
            # The charge is made, and nobody hears of it.
            handler.close_connection = True
            handler.connection.close()
            return
        handler.reply(200, json.dumps(intent).encode(), content_type="application/json")

    payments = Service(charge)
    with Gateway(payments.url, "--resend", "keyed") as gateway:
        client = stripe.StripeClient("sk_test_1", base_addresses={"api": gateway.url}, max_network_retries=2)
        intents = getattr(client, "v1", client).payment_intents
        intent = intents.create(params={"amount": 1000, "currency": "eur"})
        equal((intent.id, len(charges)), ("pi_1", 1))
        equal(len(payments.came), 2)
        # An operation of the caller's, said twice.
        options = {"idempotency_key": "order-7"}
        twice = [intents.create(params={"amount": 7, "currency": "eur"}, options=options) for _ in range(2)]
        equal([intent.id for intent in twice], ["pi_2", "pi_2"])
        equal(len(payments.came), 3)


def callbacks_are_verified():
    """W-4: a signature of the gateway's is one by the Standard Webhooks library."""
    secret = "whsec_" + "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    path = pathlib.Path(FOLDER.name) / "secret"
    path.touch(0o600)
    path.write_text(secret)
    told = queue.Queue()

    def tell(handler, _):
        told.put((handler.headers, handler.body))
        handler.reply(204)

    receiver = Service(tell)
    shop = Service(lambda handler, _: handler.reply(201, b"made"))
    flags = ["--maintenance", "--callback-http", "--callback-allow", "127.0.0.1", "--callback-secret-file", path]
    with Gateway(shop.url, *flags, "--scope-header", "x-tenant") as gateway:
        headers = {"x-tenant": "ada", "replay": "true", "replay-callback": receiver.url}
        reply = requests.post(gateway.url, data="an order", headers=headers)
        equal(reply.status_code, 202)
        requests.post(f"{gateway.admin}/maintenance/off").raise_for_status()
        headers, body = told.get(timeout=PATIENCE)
        event = standardwebhooks.Webhook(secret).verify(body, dict(headers))
        equal(event["event"], "replay.completed")
        try:
            standardwebhooks.Webhook(secret).verify(body + b" ", dict(headers))
            raise AssertionError("a changed body is refused")
        except standardwebhooks.WebhookVerificationError:
            pass
        equal(len(shop.came), 1)


for check in (
    requests_are_mended_and_executed_once,
    events_are_not_delayed,
    grpc_calls_and_streams_pass,
    a_payment_sdk_charges_once,
    callbacks_are_verified,
):
    check()
    print(f"ok: {check.__name__}: {check.__doc__}")
