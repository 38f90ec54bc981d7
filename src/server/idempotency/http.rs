use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, response};

use super::{
    Requirement,
    dialect::{Common, Made, Met, Refusal, Speak},
    engine::Operation,
    key::KeyFormat,
};
use crate::http::{
    digest::{Digest, fingerprint},
    reply::Reply,
};
use crate::{
    error::ConfigError,
    http::{
        grpc::is_grpc,
        headers::{IDEMPOTENCY_KEY, printable},
        problem::Problem,
    },
    store::{Note, RecordKey},
};

pub(super) type Route = Arc<dyn Fn(&Request<()>, &mut Digest) + Send + Sync>;
pub(super) type Require = Arc<dyn Fn(&Request<()>) -> Requirement + Send + Sync>;

/// Plain HTTP: the key is a header, and refusals are problem documents or gRPC statuses.
#[derive(Clone)]
pub struct Http {
    pub(super) format: KeyFormat,
    pub(super) methods: Vec<Method>,
    pub(super) requirement: Require,
    pub(super) route: Route,
}

impl Http {
    pub(super) fn new() -> Self {
        Self {
            format: KeyFormat {
                header: IDEMPOTENCY_KEY,
                strict: false,
            },
            methods: vec![Method::POST, Method::PATCH],
            requirement: Arc::new(|_| Requirement::Required),
            route: Arc::new(|head, digest| digest.part(head.uri().path())),
        }
    }

    fn record(&self, common: Common<'_>, head: &Request<()>) -> Result<Option<RecordKey>, Problem> {
        let Self {
            format,
            methods,
            requirement,
            route,
        } = self;
        if !methods.contains(head.method()) {
            return Ok(None);
        }
        let requirement = requirement(head);
        if requirement == Requirement::Ignored {
            return Ok(None);
        }
        let key = match format.read(head.headers(), common.settings.longest) {
            None if requirement == Requirement::Required => return Err(Problem::KEY_MISSING),
            None => return Ok(None),
            Some(Err(why)) => return Err(Problem::KEY_INVALID.detail(why)),
            Some(Ok(key)) => key,
        };
        let mut digest = common.whose(head)?;
        digest.part(head.method().as_str());
        route(head, &mut digest);
        digest.part(&*key);
        Ok(Some(digest.into()))
    }
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("header", &self.format.header)
            .field("methods", &self.methods)
            .finish_non_exhaustive()
    }
}

/// What a request asks for, and in which way it is to be answered when it is refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    key: RecordKey,
    grpc: bool,
}

impl Speak for Http {
    type Asked = Asked;

    fn check(&self) -> Result<(), ConfigError> {
        match self.methods.len() {
            0 => Err(ConfigError::new(
                None,
                "idempotency.methods",
                0,
                "at least 1",
            )),
            _ => Ok(()),
        }
    }

    fn meet(&self, common: Common<'_>, head: &Request<()>) -> Met<Asked> {
        let grpc = || is_grpc(head.headers());
        match self.record(common, head) {
            Ok(None) => Met::Other,
            Ok(Some(key)) => Met::Asked(Asked { key, grpc: grpc() }),
            Err(problem) => Met::Refused(problem.response(grpc())),
        }
    }

    fn read(
        &self,
        common: Common<'_>,
        head: &Request<()>,
        asked: &mut Asked,
        body: &Bytes,
    ) -> Result<Option<Operation>, Problem> {
        Ok(Some(Operation {
            key: asked.key,
            fingerprint: fingerprint(head, body).into(),
            note: Note::NONE,
            retention: common.settings.retention,
        }))
    }

    fn key<'a>(&self, head: &'a Request<()>, _: Option<&'a Asked>) -> Option<&'a str> {
        let value = head.headers().get(&self.format.header)?;
        printable(value.as_bytes())
    }

    fn refuse(asked: &Asked, refusal: &Refusal) -> Response<Bytes> {
        refusal.problem.response(asked.grpc)
    }

    fn processed(
        &self,
        _: Common<'_>,
        _: &Asked,
        _: Duration,
        _: &response::Parts,
        _: &Bytes,
    ) -> Made {
        Made::AsItIs
    }

    fn replayed(&self, _: &Asked, _: &Note, _: &mut Reply) {}
}
