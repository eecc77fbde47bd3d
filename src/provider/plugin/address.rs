//! Where a plugin may be: over https, or on this machine; never where only this machine's network or its cloud answers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use reqwest::Url;

/// Why an address is not called. The text names the rule and nothing of the network.
pub type Refusal = &'static str;

/// The URL of a plugin: https, or http for what may turn out to be this machine; nothing in it but host, port and path.
pub fn url(text: &str) -> Result<Url, Refusal> {
    let url = Url::parse(text).map_err(|_| "must be an absolute URL")?;
    if !matches!(url.scheme(), "https" | "http") || url.host_str().is_none_or(str::is_empty) {
        return Err("must be an https URL, or http on this machine");
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err("must have no user, password, query or fragment");
    }
    Ok(url)
}

/// Every address of a plugin's host, each of them one that may be called. `allowed`: hosts, with or without a port, that the
/// operator lets be on private networks. Whoever asks keeps what is answered and looks nothing up again.
pub async fn resolve(url: &Url, allowed: &[String]) -> Result<Vec<SocketAddr>, Refusal> {
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else { return Err("has no host") };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let found: Vec<SocketAddr> = match bare.parse::<IpAddr>() {
        Ok(ip) => vec![SocketAddr::new(ip, port)],
        Err(_) => tokio::net::lookup_host((bare, port)).await.map_err(|_| "its host has no address")?.collect(),
    };
    let is_allowed = allowed.iter().any(|one| one.eq_ignore_ascii_case(bare) || one.eq_ignore_ascii_case(&format!("{host}:{port}")));
    if found.is_empty() {
        return Err("its host has no address");
    }
    for address in &found {
        check(address.ip(), url.scheme() == "https", is_allowed)?;
    }
    Ok(found)
}

fn check(ip: IpAddr, over_tls: bool, allowed: bool) -> Result<(), Refusal> {
    match kind(ip) {
        Place::Here => Ok(()),
        Place::Never => Err("its host is at an address that is never called"),
        _ if !over_tls => Err("must be an https URL, or http on this machine"),
        Place::Private if !allowed => Err("its host is on a private network, which only the operator allows"),
        Place::Private | Place::Public => Ok(()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Here,
    Private,
    Public,
    Never,
}

fn kind(ip: IpAddr) -> Place {
    match ip {
        IpAddr::V4(ip) => kind_v4(ip),
        IpAddr::V6(ip) => kind_v6(ip),
    }
}

fn kind_v4(ip: Ipv4Addr) -> Place {
    let [a, b, c, _] = ip.octets();
    match (a, b, c) {
        (127, ..) => Place::Here,
        // This network, link-local with the clouds' metadata, another cloud's metadata, protocol assignments, documentation,
        // measurements, multicast and reserved.
        (0 | 224.., ..) | (169, 254, _) | (100, 100, 100) | (192, 0, 0 | 2) | (198, 18 | 19, _) | (198, 51, 100) | (203, 0, 113) => {
            Place::Never
        }
        (10, ..) | (172, 16..=31, _) | (192, 168, _) | (100, 64..=127, _) => Place::Private,
        _ => Place::Public,
    }
}

fn kind_v6(ip: Ipv6Addr) -> Place {
    if ip.is_loopback() {
        return Place::Here;
    }
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        kind_v4(Ipv4Addr::new(a, b, c, d))
    };
    match ip.segments() {
        [0, 0, 0, 0, 0, 0xffff, high, low] => embedded(high, low),
        // What is translated to, or tunnelled for, an address of the old kind is where that one is; this machine is not there.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => match embedded(high, low) {
            Place::Here => Place::Never,
            place => place,
        },
        // Tunnels, documentation, old mappings and discards; and a cloud's metadata in a block that is private otherwise.
        [0x2001, 0 | 0xdb8, ..] | [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254] => Place::Never,
        [first, ..] if first & 0xfe00 == 0xfc00 => Place::Private,
        [first, ..] if first & 0xe000 == 0x2000 => Place::Public,
        _ => Place::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_their_places() {
        for (ip, place) in [
            ("127.0.0.1", Place::Here),
            ("127.9.9.9", Place::Here),
            ("::1", Place::Here),
            ("::ffff:127.0.0.1", Place::Here),
            ("10.1.2.3", Place::Private),
            ("172.16.0.1", Place::Private),
            ("172.32.0.1", Place::Public),
            ("192.168.1.1", Place::Private),
            ("100.64.0.1", Place::Private),
            ("100.100.100.200", Place::Never),
            ("fd12::1", Place::Private),
            ("::ffff:10.0.0.1", Place::Private),
            ("64:ff9b::a00:1", Place::Private),
            ("64:ff9b::7f00:1", Place::Never),
            ("2002:a9fe:a9fe::1", Place::Never),
            ("169.254.169.254", Place::Never),
            ("::ffff:169.254.169.254", Place::Never),
            ("fd00:ec2::254", Place::Never),
            ("fe80::1", Place::Never),
            ("fec0::1", Place::Never),
            ("0.0.0.0", Place::Never),
            ("::", Place::Never),
            ("224.0.0.1", Place::Never),
            ("255.255.255.255", Place::Never),
            ("ff02::1", Place::Never),
            ("2001:db8::1", Place::Never),
            ("2001::1", Place::Never),
            ("8.8.8.8", Place::Public),
            ("2606:4700::1", Place::Public),
        ] {
            assert_eq!(kind(ip.parse().unwrap()), place, "{ip}");
        }
    }

    #[tokio::test]
    async fn what_is_called_is_https_or_here() {
        let refused = async |text: &str, allowed: &[&str]| {
            let allowed: Vec<String> = allowed.iter().map(|one| (*one).to_owned()).collect();
            match url(text) {
                Ok(url) => resolve(&url, &allowed).await.err(),
                Err(refusal) => Some(refusal),
            }
        };
        for fine in ["http://127.0.0.1:7080", "https://127.0.0.1/base/", "http://[::1]:80", "https://8.8.8.8"] {
            assert_eq!(refused(fine, &[]).await, None, "{fine}");
        }
        for not in [
            "",
            "plugin",
            "ftp://127.0.0.1",
            "file:///etc/passwd",
            "http://8.8.8.8",
            "https://10.0.0.1",
            "http://10.0.0.1",
            "https://169.254.169.254",
            "https://u@8.8.8.8",
            "https://8.8.8.8/?q",
            "https://8.8.8.8/#f",
            // Other ways to write addresses are addresses.
            "https://0xa9fea9fe/",
            "https://2852039166/",
        ] {
            assert!(refused(not, &[]).await.is_some(), "{not}");
        }
        assert_eq!(refused("https://10.0.0.1", &["10.0.0.1"]).await, None);
        assert_eq!(refused("https://10.0.0.1:8443", &["10.0.0.1:8443"]).await, None);
        assert!(refused("https://10.0.0.1:8444", &["10.0.0.1:8443"]).await.is_some());
        assert!(refused("http://10.0.0.1", &["10.0.0.1"]).await.is_some(), "nothing goes unencrypted through a network");
        assert!(refused("https://169.254.169.254", &["169.254.169.254"]).await.is_some(), "nobody allows that");
    }
}
