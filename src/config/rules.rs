use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    serde_types::{Grpc, Header, Human, Status},
    set,
    table::table,
};
use crate::{
    classify::{Codes, retry_after::GuidanceTable},
    policy::PolicyBuilder,
};

table! {
    pub(super) struct RulesFile {
        retry_statuses: Option<Vec<Status>>,
        no_retry_statuses: Option<Vec<Status>>,
        retry_grpc: Option<Vec<Grpc>>,
        no_retry_grpc: Option<Vec<Grpc>>,
        key_header: Option<Header>,
        honours_keys: Option<bool>,
        retry_without_key: Option<bool>,
        idempotent_methods: Option<Vec<String>>,
        unary_methods: Option<Vec<String>>,
        codes: CodesFile,
        guidance: GuidanceFile,
        request_id_header: Option<Header>,
        send_attempt_count: Option<bool>,
        send_deadline: Option<bool>,
        deadline_header: Option<Header>,
    }
}

table! {
    /// Error codes in bodies: a ready table, and changes to it.
    pub(super) struct CodesFile {
        preset: Option<Preset>,
        retry: Option<Vec<String>>,
        throttled: Option<Vec<String>>,
        once: Option<Vec<String>>,
        at_most: Option<BTreeMap<String, u32>>,
        fresh_id: Option<Vec<String>>,
        never: Option<Vec<String>>,
        pointers: Option<Vec<String>>,
        content_types: Option<Vec<String>>,
        limit: Option<usize>,
        time: Option<Human>,
    }
}

table! {
    /// Fields that say when to call again, and their forms: changes to the standard table.
    pub(super) struct GuidanceFile {
        delay: Option<Vec<String>>,
        millis: Option<Vec<String>>,
        stop: Option<Vec<String>>,
        reset: Option<BTreeMap<String, String>>,
        without: Option<Vec<String>>,
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Preset {
    Standard,
    #[cfg(feature = "forrst")]
    Forrst,
    Bank,
}

impl RulesFile {
    pub(super) fn apply(self, mut builder: PolicyBuilder) -> PolicyBuilder {
        for Status(status) in self.retry_statuses.into_iter().flatten() {
            builder = builder.retry_status(status);
        }
        for Status(status) in self.no_retry_statuses.into_iter().flatten() {
            builder = builder.no_retry_status(status);
        }
        for Grpc(code) in self.retry_grpc.into_iter().flatten() {
            builder = builder.retry_grpc(code);
        }
        for Grpc(code) in self.no_retry_grpc.into_iter().flatten() {
            builder = builder.no_retry_grpc(code);
        }
        builder = builder
            .idempotent_methods(self.idempotent_methods.unwrap_or_default())
            .unary_methods(self.unary_methods.unwrap_or_default());
        let codes = self.codes.change(builder.codes_so_far());
        builder = builder.codes(codes);
        let guidance = self.guidance.change(builder.guidance_so_far());
        builder = builder.guidance(guidance);
        let id_header = self.request_id_header.map(|Header(name)| name);
        let builder = set(builder, id_header, PolicyBuilder::request_id_header);
        let builder = set(builder, self.send_deadline, PolicyBuilder::send_deadline);
        let header = self.deadline_header.map(|Header(name)| name);
        let builder = set(builder, header, PolicyBuilder::deadline_header);
        let header = self.key_header.map(|Header(name)| name);
        let mut builder = set(builder, header, PolicyBuilder::key_header);
        if self.honours_keys == Some(true) {
            builder = builder.honours_keys();
        }
        if self.send_attempt_count == Some(true) {
            builder = builder.send_attempt_count();
        }
        if self.retry_without_key == Some(true) {
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
            #[cfg(feature = "forrst")]
            Some(Preset::Forrst) => Codes::forrst(),
            Some(Preset::Bank) => Codes::bank(),
            None => so_far,
        };
        let table = fold(table, self.retry, Codes::retry);
        let table = fold(table, self.throttled, Codes::throttled);
        let table = fold(table, self.once, |table, code| table.at_most(code, 1));
        let table = fold(table, self.at_most, |table, (code, times)| {
            table.at_most(code, times)
        });
        let table = fold(table, self.fresh_id, Codes::fresh_id);
        let table = fold(table, self.never, Codes::never);
        let table = fold(table, self.pointers, Codes::pointer);
        let mut table = fold(table, self.content_types, Codes::content_type);
        if let Some(limit) = self.limit {
            table = table.limit(limit);
        }
        if let Some(Human(time)) = self.time {
            table = table.time(time);
        }
        table
    }
}

impl GuidanceFile {
    fn change(self, so_far: GuidanceTable) -> GuidanceTable {
        let table = fold(so_far, self.without, |table, field| table.without(&field));
        let table = fold(table, self.delay, GuidanceTable::delay);
        let table = fold(table, self.millis, GuidanceTable::millis);
        let table = fold(table, self.stop, GuidanceTable::stop);
        fold(table, self.reset, |table, (field, remaining)| {
            table.reset(field, remaining)
        })
    }
}

fn fold<A, T: IntoIterator>(table: A, entries: Option<T>, add: impl FnMut(A, T::Item) -> A) -> A {
    entries.into_iter().flatten().fold(table, add)
}
