use serde::Deserialize;

use super::{
    set,
    written::{Grpc, Header, Human, Status},
};
use crate::{classify::Codes, policy::PolicyBuilder};

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RulesFile {
    #[serde(default)]
    retry_statuses: Vec<Status>,
    #[serde(default)]
    no_retry_statuses: Vec<Status>,
    #[serde(default)]
    retry_grpc: Vec<Grpc>,
    #[serde(default)]
    no_retry_grpc: Vec<Grpc>,
    key_header: Option<Header>,
    #[serde(default)]
    retry_without_key: bool,
    #[serde(default)]
    idempotent_methods: Vec<String>,
    #[serde(default)]
    unary_methods: Vec<String>,
    codes: Option<CodesFile>,
    request_id_header: Option<Header>,
}

/// Error codes in bodies: a ready table, and what is changed in it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CodesFile {
    preset: Option<Preset>,
    #[serde(default)]
    retry: Vec<String>,
    #[serde(default)]
    once: Vec<String>,
    #[serde(default)]
    fresh_id: Vec<String>,
    #[serde(default)]
    never: Vec<String>,
    #[serde(default)]
    pointers: Vec<String>,
    #[serde(default)]
    content_types: Vec<String>,
    limit: Option<usize>,
    time: Option<Human>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Preset {
    Standard,
    Forrst,
    Bank,
}

impl RulesFile {
    pub(super) fn apply(self, mut builder: PolicyBuilder) -> PolicyBuilder {
        for Status(status) in self.retry_statuses {
            builder = builder.retry_status(status);
        }
        for Status(status) in self.no_retry_statuses {
            builder = builder.no_retry_status(status);
        }
        for Grpc(code) in self.retry_grpc {
            builder = builder.retry_grpc(code);
        }
        for Grpc(code) in self.no_retry_grpc {
            builder = builder.no_retry_grpc(code);
        }
        builder = builder
            .idempotent_methods(self.idempotent_methods)
            .unary_methods(self.unary_methods);
        if let Some(codes) = self.codes {
            let table = codes.change(builder.codes_so_far());
            builder = builder.codes(table);
        }
        let id_header = self.request_id_header.map(|Header(name)| name);
        let builder = set(builder, id_header, PolicyBuilder::request_id_header);
        let header = self.key_header.map(|Header(name)| name);
        let builder = set(builder, header, PolicyBuilder::key_header);
        if self.retry_without_key {
            builder.retry_without_key()
        } else {
            builder
        }
    }
}

impl CodesFile {
    fn change(self, so_far: Codes) -> Codes {
        let table = match self.preset {
            Some(Preset::Standard) => Codes::standard(),
            Some(Preset::Forrst) => Codes::forrst(),
            Some(Preset::Bank) => Codes::bank(),
            None => so_far,
        };
        let table = self.retry.into_iter().fold(table, Codes::retry);
        let once = |table: Codes, code| table.at_most(code, 1);
        let table = self.once.into_iter().fold(table, once);
        let table = self.fresh_id.into_iter().fold(table, Codes::fresh_id);
        let table = self.never.into_iter().fold(table, Codes::never);
        let table = self.pointers.into_iter().fold(table, Codes::pointer);
        let types = self.content_types.into_iter();
        let mut table = types.fold(table, Codes::content_type);
        if let Some(limit) = self.limit {
            table = table.limit(limit);
        }
        if let Some(Human(time)) = self.time {
            table = table.time(time);
        }
        table
    }
}
