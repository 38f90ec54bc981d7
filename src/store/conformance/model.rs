use std::{collections::HashMap, time::Duration};

use bytes::Bytes;

use super::Backend;
use crate::store::{
    Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Fingerprint, IdempotencyStore, Note,
    Ownership::{self, Held, Lost},
    RecordKey, Stored,
};

const KEYS: usize = 3;

// In units. Time passes in multiples of three, and nothing ends at a multiple of three: every look
// is at least a unit away from an end.
const STEP: u64 = 3;
const LEASES: [u64; 2] = [5, 8];
const RETENTIONS: [u64; 2] = [11, 20];

/// Plays `steps` random transitions through two handles, one of which is dropped and opened again now
/// and then, and compares each result with the model's. The same seed plays the same transitions.
///
/// # Panics
///
/// At the first difference, with the seed and the last steps.
pub async fn model<B: Backend<Store: IdempotencyStore>>(backend: &B, seed: u64, steps: usize) {
    let mut random = Random(seed);
    let mut play = Play {
        unit: backend.unit(),
        seed,
        salt: rand::random(),
        now: 0,
        records: HashMap::new(),
        last: [FencingToken::new(0); KEYS],
        owners: Vec::new(),
        log: Vec::new(),
    };
    let mut handles = [backend.open().await, backend.open().await];
    for _ in 0..steps {
        let handle = random.below(2);
        let store = &handles[handle];
        match random.below(16) {
            0..=5 => play.claim(store, &mut random, false).await,
            6 => play.claim(store, &mut random, true).await,
            7..=8 => play.renew(store, &mut random).await,
            9..=10 => play.complete(store, &mut random).await,
            11..=12 => play.release(store, &mut random).await,
            13..=14 => {
                let units = STEP * [1, 1, 2, 3, 8][random.below(5)];
                play.log.push(format!("pass {units}"));
                play.now += units;
                backend.pass(play.time(units)).await;
            }
            _ => {
                play.log.push(format!("crash {handle}"));
                handles[handle] = backend.open().await;
            }
        }
    }
}

/// The record that should be in the store.
#[derive(Debug, Clone)]
struct Record {
    fingerprint: u8,
    id: ClaimId,
    note: Note,
    token: FencingToken,
    /// `None` while in flight.
    stored: Option<Stored>,
    lease_until: u64,
    expires: u64,
}

struct Play {
    unit: Duration,
    seed: u64,
    salt: [u8; 31],
    now: u64,
    records: HashMap<usize, Record>,
    /// The greatest token of each key.
    last: [FencingToken; KEYS],
    /// All owners so far, also those that were stopped for a while and come back late.
    owners: Vec<Owner>,
    log: Vec<String>,
}

#[derive(Debug, Clone, Copy)]
struct Owner {
    key: usize,
    fingerprint: u8,
    id: ClaimId,
    token: FencingToken,
}

impl Play {
    async fn claim<S: IdempotencyStore>(&mut self, store: &S, random: &mut Random, repeat: bool) {
        let (key, fingerprint, id) = match self.owner(random).filter(|_| repeat) {
            Some(owner) => (owner.key, owner.fingerprint, owner.id),
            None => {
                let fingerprint = u8::from(random.below(6) == 0);
                let id = ClaimId::new(random.bytes());
                (random.below(KEYS), fingerprint, id)
            }
        };
        let crash_policy = [CrashPolicy::Reexecute, CrashPolicy::Unknown][random.below(2)];
        let (lease, retention) = (LEASES[random.below(2)], RETENTIONS[random.below(2)]);
        self.log.push(format!(
            "claim {key} as {fingerprint} by {:x?}, {lease} + {retention}, {crash_policy:?}",
            &id.as_bytes()[..2]
        ));
        let claim = Claim {
            key: self.key(key),
            fingerprint: Fingerprint::new([fingerprint; 32]),
            id,
            lease: self.time(lease),
            retention: self.time(retention),
            crash_policy,
            note: note_of(id),
            resumes: None,
        };
        let claimed = store.claim(claim).await;
        let claimed = claimed.unwrap_or_else(|error| self.fail(&error));

        let (now, record) = (self.now, self.live(key));
        let lease_until = now + lease;
        let owner = Record {
            fingerprint,
            id,
            note: note_of(id),
            token: FencingToken::new(0),
            stored: None,
            lease_until,
            expires: lease_until + retention,
        };
        match record {
            None => self.own(key, &claimed, false, owner),
            Some(record) if record.fingerprint != fingerprint => {
                let mismatch = Claimed::Mismatch {
                    fingerprint: Fingerprint::new([record.fingerprint; 32]),
                    note: record.note,
                };
                self.same(&claimed, &mismatch);
            }
            Some(Record {
                stored: Some(stored),
                note,
                ..
            }) => self.same(&claimed, &Claimed::Done { stored, note }),
            Some(mut record) if record.id == id => {
                match claimed {
                    Claimed::New(lease) if lease.token == record.token => {}
                    other => self.fail(&format_args!("{other:?}, not token {}", record.token)),
                }
                record.lease_until = lease_until;
                record.expires = lease_until + retention;
                self.records.insert(key, record);
            }
            Some(record) if record.lease_until > now => {
                let left = self.time(record.lease_until - now);
                match claimed {
                    Claimed::InFlight { remaining, note }
                        if remaining <= left
                            && remaining + self.unit > left
                            && note == record.note => {}
                    other => self.fail(&format_args!("{other:?}, not in flight for {left:?}")),
                }
            }
            Some(mut record) if crash_policy == CrashPolicy::Unknown => {
                let unknown = Claimed::Done {
                    stored: Stored::Unknown,
                    note: record.note.clone(),
                };
                self.same(&claimed, &unknown);
                record.stored = Some(Stored::Unknown);
                // No owner has this token.
                record.token = FencingToken::new(0);
                record.expires = now + retention;
                self.records.insert(key, record);
            }
            Some(_) => self.own(key, &claimed, true, owner),
        }
    }

    async fn renew<S: IdempotencyStore>(&mut self, store: &S, random: &mut Random) {
        let Some(Owner { key, token, .. }) = self.owner(random) else {
            return;
        };
        let (lease, retention) = (LEASES[random.below(2)], RETENTIONS[random.below(2)]);
        self.log
            .push(format!("renew {key} with {token}, {lease} + {retention}"));
        let renewed = store
            .renew(self.key(key), token, self.time(lease), self.time(retention))
            .await;
        let expected = match self.live(key) {
            Some(mut record) if record.token == token && record.stored.is_none() => {
                record.lease_until = self.now + lease;
                record.expires = self.now + lease + retention;
                self.records.insert(key, record);
                Held
            }
            _ => Lost,
        };
        self.owned(renewed, expected);
    }

    async fn complete<S: IdempotencyStore>(&mut self, store: &S, random: &mut Random) {
        let Some(Owner { key, token, .. }) = self.owner(random) else {
            return;
        };
        let retention = RETENTIONS[random.below(2)];
        let stored = match random.below(4) {
            0 => Stored::NotRetained,
            1 => Stored::Unknown,
            _ => Stored::Reply(Bytes::copy_from_slice(&random.bytes())),
        };
        self.log.push(format!(
            "complete {key} with {token}, {stored:?}, {retention}"
        ));
        let completed = store
            .complete(self.key(key), token, stored.clone(), self.time(retention))
            .await;
        let expected = match self.live(key) {
            Some(mut record) if record.token == token => {
                if record.stored.is_none() {
                    record.stored = Some(stored);
                    record.expires = self.now + retention;
                    self.records.insert(key, record);
                }
                Held
            }
            _ => Lost,
        };
        self.owned(completed, expected);
    }

    async fn release<S: IdempotencyStore>(&mut self, store: &S, random: &mut Random) {
        let Some(Owner { key, token, .. }) = self.owner(random) else {
            return;
        };
        self.log.push(format!("release {key} with {token}"));
        let released = store.release(self.key(key), token).await;
        let expected = match self.live(key) {
            Some(record) if record.token == token && record.stored.is_none() => {
                self.records.remove(&key);
                Held
            }
            _ => Lost,
        };
        self.owned(released, expected);
    }

    fn key(&self, key: usize) -> RecordKey {
        let mut bytes = [u8::try_from(key).unwrap_or_default(); 32];
        bytes[..31].copy_from_slice(&self.salt);
        RecordKey::new(bytes)
    }

    fn time(&self, units: u64) -> Duration {
        self.unit * u32::try_from(units).unwrap_or(u32::MAX)
    }

    fn live(&self, key: usize) -> Option<Record> {
        let record = self.records.get(&key);
        record.filter(|record| record.expires > self.now).cloned()
    }

    /// Draws one of the last four owners, the last one most often.
    fn owner(&self, random: &mut Random) -> Option<Owner> {
        let back = random.below(4).min(random.below(4)) + 1;
        self.owners
            .get(self.owners.len().checked_sub(back)?)
            .copied()
    }

    /// Checks that the claim has a greater token, and makes it the owner.
    fn own(&mut self, key: usize, claimed: &Claimed, orphaned: bool, mut record: Record) {
        record.token = match claimed {
            Claimed::New(lease) if lease.orphaned == orphaned && lease.token > self.last[key] => {
                lease.token
            }
            other => self.fail(&format_args!(
                "{other:?}, not new (orphaned: {orphaned}) with a token above {}",
                self.last[key]
            )),
        };
        self.last[key] = record.token;
        self.owners.push(Owner {
            key,
            fingerprint: record.fingerprint,
            id: record.id,
            token: record.token,
        });
        self.records.insert(key, record);
    }

    fn same(&self, claimed: &Claimed, expected: &Claimed) {
        if claimed != expected {
            self.fail(&format_args!("{claimed:?}, not {expected:?}"));
        }
    }

    fn owned<E: std::fmt::Display>(&self, result: Result<Ownership, E>, expected: Ownership) {
        match result {
            Ok(ownership) if ownership == expected => {}
            Ok(other) => self.fail(&format_args!("{other:?}, not {expected:?}")),
            Err(error) => self.fail(&error),
        }
    }

    fn fail(&self, what: &dyn std::fmt::Display) -> ! {
        let Self { seed, now, log, .. } = self;
        let last = &log[log.len().saturating_sub(25)..];
        panic!(
            "seed {seed}, at {now}: {what}\nthe last steps:\n  {}",
            last.join("\n  ")
        );
    }
}

/// Returns a note of 0 to 3 bytes.
fn note_of(id: ClaimId) -> Note {
    let length = usize::from(id.as_bytes()[0] % 4);
    Note::new(&id.as_bytes()[..length]).unwrap_or_default()
}

/// SplitMix64, so that a seed plays the same steps in every version of this crate.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap_or_default()
    }

    fn bytes(&mut self) -> [u8; 16] {
        (u128::from(self.next()) << 64 | u128::from(self.next())).to_le_bytes()
    }
}
