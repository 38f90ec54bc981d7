//! Each model of `tower_reprise::models` as a test. They are written beside what they model, since
//! that is private.
#![cfg(all(test, reprise_loom))]

macro_rules! models {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                tower_reprise::models::$name();
            }
        )*
    };
}

models! {
    cb_1_slots_of_two_lengths_are_never_mixed
    cb_3_racing_calls_make_one_probe
    cb_5_a_freed_probe_is_taken_once
    cb_6_a_success_racing_a_failure_leaves_it_reachable
    d_6_a_refund_races_a_charge
    g_1_no_original_is_lost_when_a_slot_ends
    g_1_no_original_is_seen_twice_when_a_slot_ends
    g_1_two_threads_never_share_a_grant
    i_6_a_claim_that_races_the_end_never_executes
    i_6_a_released_claim_is_taken_once
    i_6_of_two_claims_at_once_one_executes
    i_23_replies_at_once_are_counted_once
    ra_9_of_two_that_ask_at_once_the_later_holds
    ra_9_opening_it_forgets_nothing_new
}
