//! Input is checked against the very schema that the API description shows, so that the two cannot differ.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, PoisonError, RwLock};

use jsonschema::error::{TypeKind, ValidationErrorKind as Kind};
use jsonschema::{JsonType, ValidationError, Validator};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::FieldError;

/// What is said of a member that the schema does not have.
pub const UNKNOWN_FIELD: &str = "is not a known field";

/// A schema and its compiled form.
#[derive(Debug)]
pub struct Compiled {
    /// As the API description shows it.
    pub schema: Value,
    validator: Validator,
}

/// One for each request type, made when the type is first met.
static COMPILED: LazyLock<RwLock<HashMap<TypeId, Arc<Compiled>>>> = LazyLock::new(RwLock::default);

/// The schema of a request body's type.
pub fn of_body<T: ToSchema + 'static>() -> Arc<Compiled> {
    compiled::<T>(|| {
        let mut components = Vec::new();
        T::schemas(&mut components);
        let components: Map<String, Value> = components.into_iter().map(|(name, schema)| (name, json!(schema))).collect();
        let mut root = json!(T::schema());
        root["components"] = json!({ "schemas": components });
        root
    })
}

/// The schema that `make` describes, compiled once for each type.
pub fn compiled<T: 'static>(make: impl FnOnce() -> Value) -> Arc<Compiled> {
    let key = TypeId::of::<T>();
    if let Some(found) = COMPILED.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return Arc::clone(found);
    }
    let schema = make();
    let built = jsonschema::options().should_validate_formats(true).build(&schema);
    let validator = built.unwrap_or_else(|error| unreachable!("a request schema does not compile: {error}"));
    let compiled = Arc::new(Compiled { schema, validator });
    COMPILED.write().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::clone(&compiled));
    compiled
}

impl Compiled {
    /// Everything that is wrong with a value, each at its own pointer.
    pub fn problems(&self, value: &Value) -> Vec<FieldError> {
        let mut found = Vec::new();
        for error in self.validator.iter_errors(value) {
            tell(&error, &mut found);
        }
        found.sort_by(|a, b| a.pointer.cmp(&b.pointer));
        found.dedup_by(|later, first| later.pointer == first.pointer);
        found
    }
}

fn tell(error: &ValidationError<'_>, found: &mut Vec<FieldError>) {
    let at = error.instance_path().as_str();
    let mut say = |pointer: String, message: String| found.push(FieldError { pointer, message });
    let message = match error.kind() {
        Kind::AdditionalProperties { unexpected } => {
            for name in unexpected {
                say(below(at, name), UNKNOWN_FIELD.to_owned());
            }
            return;
        }
        Kind::Required { property } => {
            say(below(at, property.as_str().unwrap_or_default()), "is required".to_owned());
            return;
        }
        // An optional object is `null` or the object; what is wrong with the object is what the caller wants to know.
        Kind::OneOfNotValid { context } | Kind::AnyOf { context } => {
            let branch = context.iter().filter(|branch| !branch.is_empty()).max_by_key(|branch| usefulness(branch));
            branch.into_iter().flatten().for_each(|error| tell(error, found));
            return;
        }
        Kind::Type { kind } => format!("must be {}", type_words(&expected(kind))),
        Kind::Enum { options } => format!("must be one of {}", listed(options)),
        Kind::Constant { expected_value } => format!("must be {expected_value}"),
        Kind::Minimum { limit } => format!("must be at least {limit}"),
        Kind::Maximum { limit } => format!("must be at most {limit}"),
        Kind::MinLength { limit: 1 } => "must not be empty".to_owned(),
        Kind::MinLength { limit } => format!("must have at least {limit} characters"),
        Kind::MaxLength { limit } => format!("must have at most {limit} characters"),
        Kind::MinItems { limit } => format!("must have at least {limit} items"),
        Kind::MaxItems { limit } => format!("must have at most {limit} items"),
        Kind::MinProperties { limit } => format!("must have at least {limit} keys"),
        Kind::MaxProperties { limit } => format!("must have at most {limit} keys"),
        Kind::Pattern { pattern } => format!("must match {pattern}"),
        Kind::Format { format } => format!("must be a {format}"),
        Kind::UniqueItems => "must not repeat an item".to_owned(),
        other => format!("breaks the rule `{}`", other.keyword()),
    };
    say(at.to_owned(), message);
}

/// A branch that complains about more than being null is the one the caller meant.
fn usefulness(branch: &[ValidationError<'_>]) -> usize {
    let about_type = |error: &ValidationError<'_>| matches!(error.kind(), Kind::Type { kind } if expected(kind) == ["null"]);
    usize::from(!branch.iter().any(about_type))
}

fn below(at: &str, name: &str) -> String {
    format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"))
}

fn listed(options: &Value) -> String {
    let words = options.as_array().into_iter().flatten().filter_map(Value::as_str);
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

fn expected(kind: &TypeKind) -> Vec<&'static str> {
    match kind {
        TypeKind::Single(one) => vec![one.as_str()],
        TypeKind::Multiple(several) => several.iter().map(JsonType::as_str).collect(),
    }
}

fn type_words(types: &[&str]) -> String {
    let words = types.iter().filter_map(|name| match *name {
        "integer" => Some("a whole number"),
        "number" => Some("a number"),
        "string" => Some("a string"),
        "boolean" => Some("true or false"),
        "object" => Some("an object"),
        "array" => Some("a list"),
        _ => None,
    });
    words.collect::<Vec<_>>().join(" or ")
}
