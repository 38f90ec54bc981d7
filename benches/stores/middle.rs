//! One value for many.

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Of rates: near to what there is when nobody else wants the processor or the disk.
pub(crate) fn upper_quartile(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() * 3 / 4]
}
