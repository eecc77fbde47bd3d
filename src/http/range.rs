//! Conditions and ranges of what is downloaded.

use std::ops::Range;

use axum::http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::Response;

use super::problem::Problem;
use crate::error::{Code, Error};

/// Whether the caller has what this tag names already.
pub fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let plain = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let seen = headers.get(IF_NONE_MATCH).and_then(|seen| seen.to_str().ok()).unwrap_or_default();
    seen.split(',').any(|tag| tag.trim() == "*" || plain(tag) == plain(etag))
}

/// Makes an answer the answer of this range of `size` bytes.
pub fn of_range(response: &mut Response, range: Option<&Range<u64>>, size: u64) {
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(range.map_or(size, |range| range.end - range.start)));
    if let Some(range) = range {
        let told = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        headers.extend(HeaderValue::from_str(&told).ok().map(|told| (CONTENT_RANGE, told)));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
}

/// One range of bytes; a form we do not serve is ignored, as HTTP allows, and one that begins past the end is 416.
pub fn parse_range(header: &HeaderValue, size: u64) -> Result<Option<Range<u64>>, Problem> {
    let spec = header.to_str().ok().and_then(|text| text.strip_prefix("bytes=")).filter(|spec| !spec.contains(','));
    let Some((first, last)) = spec.and_then(|spec| spec.trim().split_once('-')) else { return Ok(None) };
    let range = match (first.parse::<u64>(), last.parse::<u64>()) {
        (Ok(first), Ok(last)) if first <= last => first..last.saturating_add(1).min(size),
        (Ok(first), Err(_)) if last.is_empty() => first..size,
        (Err(_), Ok(suffix)) if first.is_empty() => size.saturating_sub(suffix)..size,
        _ => return Ok(None),
    };
    if range.start >= range.end {
        let error = Error::new(Code::RangeNotSatisfiable, format!("There are {size} bytes.")).fact("size", size);
        return Err(error.into());
    }
    Ok(Some(range))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_the_size_or_refused() {
        let parse = |text: &'static str| parse_range(&HeaderValue::from_static(text), 100);
        assert_eq!(parse("bytes=0-9").unwrap(), Some(0..10));
        assert_eq!(parse("bytes=90-").unwrap(), Some(90..100));
        assert_eq!(parse("bytes=-5").unwrap(), Some(95..100));
        assert_eq!(parse("bytes=50-500").unwrap(), Some(50..100));
        assert_eq!(parse("lines=1-2").unwrap(), None);
        assert_eq!(parse("bytes=100-").unwrap_err().0.code, Code::RangeNotSatisfiable);
    }

    #[test]
    fn a_known_tag_is_compared_weakly() {
        let headers = HeaderMap::from_iter([(IF_NONE_MATCH, HeaderValue::from_static("\"a\", W/\"b\""))]);
        assert!(is_known(&headers, "W/\"a\"") && is_known(&headers, "\"b\"") && !is_known(&headers, "\"c\""));
        assert!(!is_known(&HeaderMap::new(), "\"a\""));
    }
}
