//! Numbers as people read them: three or four digits that count, thousands parted, the unit beside.

use crate::case::Measure;

/// "12,300", "123", "12.3", "1.23", "0.0123", "1.2e15"; "–" for what is no number.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "–".to_owned()
    } else if size == 0.0 {
        "0".to_owned()
    } else if !(1e-4..1e9).contains(&size) {
        format!("{value:.1e}")
    } else if size >= 99.95 {
        thousands(value)
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.9995 {
        format!("{value:.2}")
    } else {
        let digits = (2 - size.log10().floor() as i32).clamp(0, 8) as usize;
        format!("{value:.digits$}")
    }
}

/// A tick of an axis: as short as it can be.
pub fn tick(value: f64) -> String {
    if value != 0.0 && !(1e-3..1e7).contains(&value.abs()) {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if value.abs() >= 1000.0 { thousands(value) } else { text.to_owned() }
}

/// A whole number with commas: "5,000".
pub fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// "48 %", "2.1 %"; whole percents from ten on; the line does not break before the sign.
pub fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if !percent.is_finite() {
        "–".to_owned()
    } else if percent.abs() >= 10.0 {
        format!("{percent:.0}\u{a0}%")
    } else {
        format!("{percent:.1}\u{a0}%")
    }
}

/// "2025-01-02 03:04:05 UTC" of RFC 3339; anything else as it is.
pub fn moment(text: &str) -> String {
    text.strip_suffix('Z').map_or_else(|| text.to_owned(), |utc| format!("{} UTC", utc.replacen('T', " ", 1)))
}

/// The unit in which values of this measure are shown.
pub fn unit(measure: Measure) -> &'static str {
    match measure {
        Measure::Latency => "µs",
        Measure::Bandwidth => "MB/s",
    }
}

/// A value of results.json (ns, bytes per second) in that unit.
pub fn in_unit(measure: Measure, value: f64) -> f64 {
    match measure {
        Measure::Latency => value / 1e3,
        Measure::Bandwidth => value / 1e6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_the_digits_that_count() {
        let texts = [0.0, 0.012_345, 0.9999, 1.234, 12.34, 123.4, 12_345.6, -1234.0, 1e15, 3e-7, f64::NAN].map(number);
        assert_eq!(texts, ["0", "0.0123", "1.00", "1.23", "12.3", "123", "12,346", "-1,234", "1.0e15", "3.0e-7", "–"]);
        assert_eq!(moment("2025-01-02T03:04:05Z"), "2025-01-02 03:04:05 UTC");
        assert_eq!([0.0, 0.5, 2.0, 5000.0, 1e8].map(tick), ["0", "0.5", "2", "5,000", "1e8"]);
        assert_eq!([0.48, 0.021, -0.2, f64::INFINITY].map(percent), ["48\u{a0}%", "2.1\u{a0}%", "-20\u{a0}%", "–"]);
    }
}
