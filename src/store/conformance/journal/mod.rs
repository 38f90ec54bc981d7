mod bounds;
mod commands;
mod leasing;
mod queueing;
mod reading;
mod settling;
mod sharing;

use std::{sync::Arc, time::Duration};

use super::Backend;

use crate::store::{
    Fingerprint, Ownership, RecordKey,
    journal::{
        Dedup, Enqueued, Entry, EntryCommand, EntryId, Journal, LeaseRequest, LeaseToken, NewEntry,
        Priority, Query, Settlement, Status,
    },
};

/// Durations of the cases, in units of the backend.
const LEASE: u32 = 5;
const KEEP: u32 = 20;
const TTL: u32 = 50;

/// Runs every case of a [`Journal`], one after the other. Queues have random names, so that the
/// journal need not be empty.
///
/// # Panics
///
/// When the store breaks the contract.
pub async fn journal<B: Backend<Store: Journal>>(backend: &B) {
    let new = async || Case {
        store: Arc::new(backend.open().await),
        other: Arc::new(backend.open().await),
        backend,
        unit: backend.unit(),
        queue: format!("q{:016x}", rand::random::<u64>()),
    };
    /// Runs each case in a queue of its own.
    macro_rules! run {
        ($($case:ident)*) => {{ $(new().await.$case().await;)* }};
    }
    run! {
        what_is_queued_comes_back_whole
        enqueuing_can_be_repeated
        the_same_operation_is_queued_once
        what_was_called_off_frees_its_key
        many_are_queued_at_once
        a_shared_end_comes_back_with_each_payload
        a_shared_end_stays_for_those_that_need_it
        bounds_hold_for_concurrent_callers
        bounds_count_what_is_not_over
        order_is_priority_then_due_then_sequence
        a_lane_in_order_waits_for_its_first
        a_lane_in_order_waits_for_one_past_its_time
        lanes_are_independent
        many_workers_share_without_overlap
        a_lease_runs_out_and_counts
        a_lease_that_ran_out_is_its_owners_until_taken
        a_stale_lease_changes_nothing
        a_settlement_can_be_repeated
        what_is_kept_for_no_time_is_gone_at_once
        a_retry_waits_and_a_release_does_not_count
        causes_and_redrives_are_counted
        a_payload_goes_with_the_last_use_for_it
        an_outcome_and_its_outbox_are_one
        a_letter_and_its_outbox_are_one
        cancel_and_lease_have_one_winner
        what_is_triggered_goes_first
        what_is_past_its_time_is_only_leased_to_be_told_so
        a_dead_letter_is_redriven_once
        only_a_dead_letter_is_purged
        an_owner_is_erased_whatever_the_states
        what_runs_takes_no_place_in_an_erasure
        what_is_over_is_kept_for_its_time
        lists_page_and_filter
        counts_and_positions_add_up
        nothing_is_known_of_what_is_not_there
        any_duration_is_taken
        secrets_are_shared
    }
}

struct Case<'a, B: Backend> {
    backend: &'a B,
    store: Arc<B::Store>,
    /// The same journal, through another handle.
    other: Arc<B::Store>,
    unit: Duration,
    queue: String,
}

impl<B: Backend<Store: Journal>> Case<'_, B> {
    fn entry(&self) -> NewEntry {
        NewEntry {
            ttl: self.unit * TTL,
            ..NewEntry::new(self.queue.clone(), "payload")
        }
    }

    fn keep(&self) -> Duration {
        self.unit * KEEP
    }

    async fn pass(&self, units: u32) {
        self.backend.pass(self.unit * units).await;
    }

    async fn put(&self, entry: NewEntry) -> EntryId {
        let id = entry.id;
        match self.store.enqueue(entry).await.expect("enqueue") {
            Enqueued::New(entry) if entry.id == id => id,
            other => panic!("it should be new, but is {other:?}"),
        }
    }

    /// Enqueues an entry that differs from the usual one.
    async fn put_with(&self, change: impl FnOnce(&mut NewEntry)) -> EntryId {
        let mut entry = self.entry();
        change(&mut entry);
        self.put(entry).await
    }

    fn request(&self, lane: &str, limit: u32) -> LeaseRequest {
        LeaseRequest::new(self.queue.clone(), lane, limit, self.unit * LEASE)
    }

    async fn lease(&self, limit: u32) -> Vec<Entry> {
        self.store
            .lease(self.request("", limit))
            .await
            .expect("lease")
    }

    async fn lease_one(&self) -> Entry {
        let mut leased = self.lease(1).await;
        leased.pop().expect("something to lease")
    }

    /// Leases what may be leased while all else is held back.
    async fn lease_urgent(&self) -> Vec<Entry> {
        let request = LeaseRequest {
            through: Priority::Urgent,
            ..self.request("", 9)
        };
        self.store.lease(request).await.expect("lease")
    }

    async fn extend(&self, id: EntryId, lease_token: LeaseToken, lease: Duration) -> Ownership {
        let extended = self.store.extend(id, lease_token, lease).await;
        extended.expect("extend")
    }

    async fn settle(&self, entry: &Entry, settlement: Settlement) {
        let settled = self.store.settle(entry.id, entry.lease_token, settlement);
        assert_eq!(settled.await.expect("settle"), Ownership::Held);
    }

    async fn complete(&self, entry: &Entry) {
        let settlement = Settlement::completed("", self.keep());
        self.settle(entry, settlement).await;
    }

    async fn fail(&self, entry: &Entry) {
        let settlement = Settlement::failed("broken", self.keep());
        self.settle(entry, settlement).await;
    }

    fn cancel(&self) -> EntryCommand {
        EntryCommand::Cancel(self.keep())
    }

    /// Gives a command that is applied, or is not, and compares the status then.
    async fn command(&self, id: EntryId, command: EntryCommand, expected: Result<Status, Status>) {
        let result = self.store.command(id, command).await.expect("command");
        let result = result.expect("an entry");
        let seen = match result.applied {
            true => Ok(result.entry.status),
            false => Err(result.entry.status),
        };
        assert_eq!(seen, expected, "{command:?}");
    }

    async fn find(&self, id: EntryId) -> Option<Entry> {
        self.other.find(id).await.expect("find")
    }

    async fn status(&self, id: EntryId) -> Option<Status> {
        self.find(id).await.map(|entry| entry.status)
    }

    async fn list(&self, query: Query) -> Vec<Entry> {
        self.other.list(query).await.expect("list")
    }
}

fn ids(entries: &[Entry]) -> Vec<EntryId> {
    entries.iter().map(|entry| entry.id).collect()
}

fn dedup(key: u8, fingerprint: u8) -> Option<Dedup> {
    Some(Dedup {
        key: RecordKey::new([key; 32]),
        fingerprint: Fingerprint::new([fingerprint; 32]),
    })
}
