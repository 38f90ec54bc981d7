use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use http::{Response, StatusCode};
use http_body::Body;
use tokio::time::{Sleep, sleep};

use super::{PeekResponse, codes::Document};
use crate::classify::BodySignal;
use crate::{
    classify::{Advice, CodeRule, Rules, worth_keeping},
    dependency::{Dependency, forget_verdict},
    http::{BufferedBody, GrpcCode, UnreadBody, grpc::is_grpc, response::ResponseHead},
};

/// The least size that a frame counts, so that empty ones come to an end too.
const FRAME: usize = 64;

/// The part of a reply that is worth reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Nothing,
    /// A gRPC status in trailers that come before any message.
    Trailers,
    /// All of the body, for its code, for its guidance or for its connection.
    Body {
        code: bool,
        guidance: bool,
    },
}

impl Look {
    #[inline(always)]
    pub(super) fn at<R: ResponseHead>(rules: &Rules, reply: &R) -> Self {
        let (status, headers) = (reply.status(), reply.headers());
        if headers.is_empty() && status == StatusCode::OK {
            return Self::Nothing;
        }
        let code = cfg!(feature = "codes") && rules.codes.may_be_in(status, headers);
        let failed = status.is_client_error() || status.is_server_error();
        let retryable = failed && worth_keeping(rules, status);
        if code || retryable {
            let guidance = retryable && Document::may_guide(rules, headers);
            return Self::Body { code, guidance };
        }
        let grpc = status == StatusCode::OK && is_grpc(headers);
        match grpc && GrpcCode::from_headers(headers).is_none() {
            true => Self::Trailers,
            false => Self::Nothing,
        }
    }
}

/// A reply whose body is being read.
pub(super) struct Reading<R: PeekResponse> {
    head: Response<()>,
    body: BufferedBody<R::Body>,
    look: Look,
    /// Frames that are not there yet are waited for.
    wait: bool,
    size: usize,
    timer: Option<Pin<Box<Sleep>>>,
}

impl<R: PeekResponse> Reading<R> {
    pub(super) fn new(reply: R, look: Look, unary: bool) -> Self {
        let (head, body) = reply.open();
        Self {
            head,
            body,
            look,
            wait: unary || look != Look::Trailers,
            size: 0,
            timer: None,
        }
    }

    /// Reads the body. Ready when nothing more is worth waiting for.
    pub(super) fn poll(&mut self, dependency: &Dependency, cx: &mut Context<'_>) -> Poll<()> {
        let rules = dependency.policy().rules();
        let limit = rules.codes.most();
        if self.body.size_hint().lower() > limit as u64 && self.look != Look::Trailers {
            return Poll::Ready(());
        }
        while self.size <= limit {
            match self.body.poll_read(cx) {
                Poll::Ready(None) => break,
                Poll::Ready(Some(data)) => {
                    self.size += data.unwrap_or_default().max(FRAME);
                    // A message is the caller's, and so is what comes after it.
                    if self.look == Look::Trailers && data != Some(0) {
                        break;
                    }
                }
                Poll::Pending if !self.wait => break,
                Poll::Pending => {
                    // A unary reply is waited for as long as the call may take.
                    if self.look == Look::Trailers {
                        return Poll::Pending;
                    }
                    // The attempt must not run out of time while a head is there.
                    let longest = || rules.codes.longest().min(dependency.longest_attempt() / 4);
                    let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(longest())));
                    ready!(timer.as_mut().poll(cx));
                    break;
                }
            }
        }
        Poll::Ready(())
    }

    /// Returns the reply, with the signal that was found.
    pub(super) fn finish(mut self, rules: &Rules) -> R::Peeked {
        let signal = match self.look {
            Look::Body { code, guidance } if code || guidance => {
                let document = Document::read(&self.body, rules.codes.most());
                let record = document.as_ref().and_then(Document::error_record);
                if let Some(record) = record.filter(|_| code) {
                    self.head.extensions_mut().insert(record);
                }
                document.and_then(|document| found_in(&document, rules, code, guidance))
            }
            Look::Trailers => self.body.trailers().cloned().map(BodySignal::Trailers),
            _ => None,
        };
        if let Some(signal) = signal {
            let extensions = self.head.extensions_mut();
            forget_verdict(extensions);
            extensions.insert(signal);
        }
        if self.look != Look::Trailers && !self.body.is_read() {
            self.head.extensions_mut().insert(UnreadBody);
        }
        R::close(self.head, self.body)
    }
}

fn found_in(document: &Document, rules: &Rules, code: bool, guidance: bool) -> Option<BodySignal> {
    let nothing = Advice::default();
    if code && document.is_replayed_failure(&rules.codes) {
        return Some(BodySignal::Code(CodeRule::CACHED, nothing));
    }
    let mut advice = nothing;
    if code {
        advice = document.advice(&rules.codes);
    }
    if guidance {
        advice = document.guided(advice, rules);
    }
    let find = || rules.codes.find(|pointer| document.text_at(pointer));
    match code.then(find).flatten() {
        Some(rule) => Some(BodySignal::Code(rule, advice)),
        None => (advice != nothing).then_some(BodySignal::Advice(advice)),
    }
}
