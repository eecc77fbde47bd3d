//! Which paths stay out of an archive.

/// Patterns over relative paths. One without a slash matches any component of that name; one with a slash inside or in
/// front matches that path from the root. `*` stands for any bytes within a component. What lies below a match is out too.
pub struct Exclude {
    names: Vec<Vec<u8>>,
    paths: Vec<Vec<Vec<u8>>>,
}

impl Exclude {
    /// Reads patterns; empty ones, and empty components, mean nothing.
    pub fn new(patterns: &[String]) -> Self {
        let mut exclude = Self { names: Vec::new(), paths: Vec::new() };
        for pattern in patterns {
            let parts: Vec<Vec<u8>> =
                pattern.split('/').filter(|part| !part.is_empty() && *part != ".").map(|part| part.as_bytes().to_vec()).collect();
            match parts.as_slice() {
                [] => {}
                [name] if !pattern.starts_with('/') => exclude.names.push(name.clone()),
                _ => exclude.paths.push(parts),
            }
        }
        exclude
    }

    /// Whether this path is out; its ancestors are known not to be.
    pub fn matches(&self, path: &[u8]) -> bool {
        let parts = || path.split(|&byte| byte == b'/');
        self.names.iter().any(|name| parts().next_back().is_some_and(|last| glob(name, last)))
            || self
                .paths
                .iter()
                .any(|pattern| pattern.len() == parts().count() && pattern.iter().zip(parts()).all(|(one, part)| glob(one, part)))
    }
}

/// Whether a name fits a pattern of bytes and stars. Going back to the last star alone is enough, so it stays quadratic.
fn glob(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p, n));
            p += 1;
        } else if pattern.get(p) == Some(&name[n]) {
            p += 1;
            n += 1;
        } else if let Some((at, from)) = star {
            star = Some((at, from + 1));
            p = at + 1;
            n = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(patterns: &[&str], path: &str) -> bool {
        Exclude::new(&patterns.iter().map(ToString::to_string).collect::<Vec<_>>()).matches(path.as_bytes())
    }

    #[test]
    fn a_name_matches_anywhere_and_a_path_from_the_root() {
        assert!(out(&["node_modules"], "node_modules") && out(&["node_modules"], "a/b/node_modules"));
        assert!(out(&["target/"], "a/target"));
        assert!(out(&["/target"], "target") && !out(&["/target"], "a/target"));
        assert!(out(&["a/b"], "a/b") && !out(&["a/b"], "x/a/b") && !out(&["a/b"], "a"));
        assert!(!out(&["", "/", "./"], "a"));
    }

    #[test]
    fn a_star_stays_within_its_component() {
        assert!(out(&["*.log"], "x/y.log") && !out(&["*.log"], "x/y.logs"));
        assert!(out(&["a/*/c"], "a/b/c") && !out(&["a/*"], "a/b/c"));
        assert!(out(&["*a*b*"], "xxaxxbxx") && !out(&["*a*b*"], "xxbxxaxx"));
        assert!(out(&["*"], "anything") && out(&["a**"], "a"));
    }
}
