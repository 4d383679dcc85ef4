//! Environment variables of OpenTelemetry that decide whether and where spans are exported.

/// Variables that the operator passes on to pods. Headers, which may contain a password, and variables that
/// describe the operator itself are not passed on.
const FOR_PODS: [&str; 5] =
    [ENDPOINT, TRACES_ENDPOINT, PROTOCOL, "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"];
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
const TRACES_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";

/// Destination of spans, according to the environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// Spans are not exported.
    Off,
    /// Spans go to this collector, by HTTP with protobuf.
    Collector(String),
    /// The environment requests an unsupported protocol.
    OtherProtocol(String),
}

impl Endpoint {
    /// Reads the destination; an empty variable counts as unset.
    pub(crate) fn read(variable: impl Fn(&str) -> Option<String>) -> Self {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let is_disabled =
            variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let is_elsewhere = variable("OTEL_TRACES_EXPORTER").is_some_and(|exporter| exporter != "otlp");
        let Some(address) = variable(TRACES_ENDPOINT).or_else(|| variable(ENDPOINT)) else {
            return Self::Off;
        };
        if is_disabled || is_elsewhere {
            return Self::Off;
        }
        match variable(TRACES_PROTOCOL).or_else(|| variable(PROTOCOL)) {
            Some(protocol) if protocol != "http/protobuf" => Self::OtherProtocol(protocol),
            _ => Self::Collector(address),
        }
    }
}

/// Returns the variables with which pods export their spans to this process's collector; empty if this
/// process exports none.
pub fn for_pods(variable: impl Fn(&str) -> Option<String>) -> Vec<(String, String)> {
    if !matches!(Endpoint::read(&variable), Endpoint::Collector(_)) {
        return Vec::new();
    }
    let set =
        |name: &str| variable(name).filter(|value| !value.is_empty()).map(|value| (name.to_owned(), value));
    FOR_PODS.into_iter().filter_map(set).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Endpoint {
        Endpoint::read(|name| find(variables, name))
    }

    fn find(variables: &[(&str, &str)], name: &str) -> Option<String> {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn the_environment_turns_export_on_and_names_the_endpoint() {
        let collector = || Endpoint::Collector("http://otel:4318".into());
        assert_eq!(read(&[]), Endpoint::Off);
        assert_eq!(read(&[(ENDPOINT, "")]), Endpoint::Off);
        assert_eq!(read(&[(ENDPOINT, "http://otel:4318")]), collector());
        assert_eq!(read(&[(ENDPOINT, "http://other"), (TRACES_ENDPOINT, "http://otel:4318")]), collector());
        assert_eq!(read(&[(ENDPOINT, "http://otel:4318"), ("OTEL_SDK_DISABLED", "true")]), Endpoint::Off);
        assert_eq!(read(&[(ENDPOINT, "http://otel:4318"), ("OTEL_TRACES_EXPORTER", "none")]), Endpoint::Off);
        let grpc = read(&[(ENDPOINT, "http://otel:4317"), (PROTOCOL, "grpc")]);
        assert_eq!(grpc, Endpoint::OtherProtocol("grpc".into()));
    }

    #[test]
    fn pods_get_the_address_and_the_share_of_traces_but_no_password() {
        let variables = [
            (ENDPOINT, "http://otel:4318"),
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=secret"),
            ("OTEL_SERVICE_NAME", "rlt-operator"),
        ];
        let given = for_pods(|name| find(&variables, name));
        let names: Vec<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, [ENDPOINT, "OTEL_TRACES_SAMPLER"]);
        assert_eq!(for_pods(|name| find(&variables[1..], name)), []);
    }
}
