#pragma once

/// \file
/// `schema_errors`: checks JSON against a JSON Schema, as far as docs/schema uses it: type, const, enum, minimum, properties,
/// required, additionalProperties (false), items. A keyword that it does not know is an error of the schema.

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace tenure::test {

inline bool has_type(const nlohmann::json& value, const std::string& type) {
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    if (type == "string") return value.is_string();
    if (type == "object") return value.is_object();
    if (type == "array") return value.is_array();
    if (type == "boolean") return value.is_boolean();
    return type == "null" && value.is_null();
}

/// Effects: adds a line for each breach.
inline void check_schema(const nlohmann::json& schema, const nlohmann::json& value, const std::string& where,
                         std::vector<std::string>& errors) {
    constexpr std::array<std::string_view, 12> known{
        "$schema", "$id",        "title",    "description",          "type", "const", "enum",
        "minimum", "properties", "required", "additionalProperties", "items"};
    for (const auto& [key, unused] : schema.items())
        if (std::find(known.begin(), known.end(), key) == known.end())
            errors.push_back(where + ": the schema has a keyword that is not checked: " + key);
    if (schema.contains("type")) {
        const nlohmann::json& type = schema["type"];
        bool good = false;
        if (type.is_string()) good = has_type(value, type);
        if (type.is_array())
            for (const auto& t : type) good = good || has_type(value, t);
        if (!good) errors.push_back(where + ": not of type " + type.dump() + ": " + value.dump());
    }
    if (schema.contains("const") && value != schema["const"])
        errors.push_back(where + ": not " + schema["const"].dump());
    if (schema.contains("enum") &&
        std::find(schema["enum"].begin(), schema["enum"].end(), value) == schema["enum"].end())
        errors.push_back(where + ": none of " + schema["enum"].dump());
    if (schema.contains("minimum") && value.is_number() && value < schema["minimum"])
        errors.push_back(where + ": below " + schema["minimum"].dump());
    if (value.is_object()) {
        const nlohmann::json none = nlohmann::json::object();
        const nlohmann::json& properties = schema.contains("properties") ? schema["properties"] : none;
        if (schema.contains("required"))
            for (const auto& name : schema["required"])
                if (!value.contains(name.get<std::string>())) errors.push_back(where + ": no " + name.dump());
        for (const auto& [name, member] : value.items()) {
            if (properties.contains(name))
                check_schema(properties[name], member, where + '.' + name, errors);
            else if (schema.contains("additionalProperties") && schema["additionalProperties"] == false)
                errors.push_back(where + ": unknown member " + name);
        }
    }
    if (value.is_array() && schema.contains("items"))
        for (std::size_t i = 0; i < value.size(); ++i)
            check_schema(schema["items"], value[i], where + '[' + std::to_string(i) + ']', errors);
}

/// Returns: "" if the value is as the schema says, else what is wrong.
inline std::string schema_errors(const nlohmann::json& schema, const nlohmann::json& value) {
    std::vector<std::string> errors;
    check_schema(schema, value, "$", errors);
    std::string all;
    for (const std::string& e : errors) all += e + '\n';
    return all;
}

} // namespace tenure::test
