use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    serde_types::{Grpc, Header, Human, Status},
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
    pub(super) fn apply(self, builder: PolicyBuilder) -> PolicyBuilder {
        let statuses = |list: Option<Vec<Status>>| list.into_iter().flatten().map(|it| it.0);
        let codes = |list: Option<Vec<Grpc>>| list.into_iter().flatten().map(|it| it.0);
        let builder = statuses(self.retry_statuses).fold(builder, PolicyBuilder::retry_status);
        let builder =
            statuses(self.no_retry_statuses).fold(builder, PolicyBuilder::no_retry_status);
        let builder = codes(self.retry_grpc).fold(builder, PolicyBuilder::retry_grpc);
        let builder = codes(self.no_retry_grpc).fold(builder, PolicyBuilder::no_retry_grpc);
        let codes = self.codes.change(builder.codes_so_far());
        let guidance = self.guidance.change(builder.guidance_so_far());
        let name = |header: Option<Header>| header.map(|Header(name)| name);
        builder
            .idempotent_methods(self.idempotent_methods.unwrap_or_default())
            .unary_methods(self.unary_methods.unwrap_or_default())
            .codes(codes)
            .guidance(guidance)
            .set(
                name(self.request_id_header),
                PolicyBuilder::request_id_header,
            )
            .set(self.send_deadline, PolicyBuilder::send_deadline)
            .set(name(self.deadline_header), PolicyBuilder::deadline_header)
            .set(name(self.key_header), PolicyBuilder::key_header)
            .when(self.honours_keys, PolicyBuilder::honours_keys)
            .when(self.send_attempt_count, PolicyBuilder::send_attempt_count)
            .when(self.retry_without_key, PolicyBuilder::retry_without_key)
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
