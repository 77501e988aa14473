"""The functions that a statement may call on every connection: they neither change anything nor read anything but their
arguments.

Any other name is refused: a database has thousands of functions, extensions add more, and some read files, connect to
hosts or run other SQL.
"""

from __future__ import annotations

from typing import Final

_AGGREGATES: Final = """
array_agg avg bit_and bit_or bit_xor bool_and bool_or count every json_agg json_object_agg json_agg_strict
json_object_agg_strict json_object_agg_unique jsonb_agg jsonb_agg_strict jsonb_object_agg jsonb_object_agg_strict
jsonb_object_agg_unique max min range_agg range_intersect_agg string_agg sum any_value corr covar_pop covar_samp
regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy stddev stddev_pop
stddev_samp variance var_pop var_samp mode percentile_cont percentile_disc rank dense_rank percent_rank cume_dist
row_number ntile lag lead first_value last_value nth_value grouping
"""
_NUMBERS: Final = """
abs acos acosd acosh asin asind asinh atan atan2 atan2d atand atanh cbrt ceil ceiling cos cosd cosh cot cotd degrees
div erf erfc exp factorial floor gcd lcm ln log log10 min_scale mod numeric pi power pow radians random random_normal
round scale sign sin sind sinh sqrt tan tand tanh trim_scale trunc width_bucket isfinite int4 int8 float8
"""
_TEXTS: Final = """
ascii bit_count bit_length btrim char_length character_length chr casefold concat concat_ws convert_from convert_to
crc32 crc32c decode encode format get_bit get_byte initcap left length lower lpad ltrim md5 normalize is_normalized
octet_length overlay parse_ident position quote_ident quote_literal quote_nullable regexp_count regexp_instr
regexp_like regexp_match regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table regexp_substr
repeat replace reverse right rpad rtrim set_bit set_byte sha224 sha256 sha384 sha512 split_part starts_with
string_to_array string_to_table strpos substr substring to_ascii to_bin to_hex to_oct translate trim unistr upper
like_escape similar_to_escape similar_escape text varchar bpchar
"""
_TIMES: Final = """
age clock_timestamp date date_add date_bin date_part date_subtract date_trunc extract interval isfinite justify_days
justify_hours justify_interval make_date make_interval make_time make_timestamp make_timestamptz now overlaps
statement_timestamp timeofday timezone to_char to_date to_number to_timestamp transaction_timestamp time timestamp
timestamptz
"""
_COLLECTIONS: Final = """
array_append array_cat array_dims array_fill array_length array_lower array_ndims array_position array_positions
array_prepend array_remove array_replace array_reverse array_sample array_shuffle array_sort array_to_string
array_upper cardinality trim_array unnest generate_series generate_subscripts array_to_json json_array_elements
json_array_elements_text json_array_length json_build_array json_build_object json_each json_each_text
json_extract_path json_extract_path_text json_object json_object_keys json_populate_record json_populate_recordset
json_strip_nulls json_to_record json_to_recordset json_typeof jsonb_array_elements jsonb_array_elements_text
jsonb_array_length jsonb_build_array jsonb_build_object jsonb_each jsonb_each_text jsonb_extract_path
jsonb_extract_path_text jsonb_insert jsonb_object jsonb_object_keys jsonb_path_exists jsonb_path_exists_tz
jsonb_path_match jsonb_path_match_tz jsonb_path_query jsonb_path_query_array jsonb_path_query_array_tz
jsonb_path_query_first jsonb_path_query_first_tz jsonb_path_query_tz jsonb_populate_record jsonb_populate_recordset
jsonb_pretty jsonb_set jsonb_set_lax jsonb_strip_nulls jsonb_to_record jsonb_to_recordset jsonb_typeof row_to_json
to_json to_jsonb isempty lower_inc lower_inf upper_inc upper_inf range_merge multirange daterange int4range int8range
numrange tsrange tstzrange int4multirange int8multirange nummultirange datemultirange tsmultirange tstzmultirange
num_nonnulls num_nulls
"""
_OTHERS: Final = """
abbrev broadcast family host hostmask masklen netmask network inet_merge inet_same_family set_masklen area box center
circle diagonal diameter height isclosed isopen line lseg npoints path point polygon radius slope width enum_first
enum_last enum_range gen_random_uuid uuidv4 uuidv7 uuid_extract_timestamp uuid_extract_version current_database
current_schema pg_typeof pg_size_pretty pg_column_size numnode phraseto_tsquery plainto_tsquery querytree setweight
strip to_tsquery to_tsvector array_to_tsvector ts_headline ts_rank ts_rank_cd tsvector_to_array websearch_to_tsquery
ts_delete ts_filter tsquery_phrase
"""
POSTGRES_FUNCTIONS: Final = frozenset(f"{_AGGREGATES} {_NUMBERS} {_TEXTS} {_TIMES} {_COLLECTIONS} {_OTHERS}".split())

SQLITE_FUNCTIONS: Final = frozenset(
    """
abs acos acosh asin asinh atan atan2 atanh avg bm25 ceil ceiling char coalesce concat concat_ws cos cosh count
cume_dist current_date current_time current_timestamp date datetime degrees dense_rank exp first_value floor format
glob group_concat hex highlight if ifnull iif instr json json_array json_array_length json_each json_error_position
json_extract json_group_array json_group_object json_insert json_object json_patch json_pretty json_quote json_remove
json_replace json_set json_tree json_type json_valid julianday lag last_value lead length like likelihood likely ln
log log10 log2 lower ltrim match max median min mod nth_value ntile nullif octet_length percent_rank percentile
percentile_cont percentile_disc pi pow power printf quote radians random rank replace round row_number rtrim sign sin
sinh snippet soundex sqrt strftime string_agg substr substring sum tan tanh time timediff total trim trunc typeof
unhex unicode unixepoch unlikely upper -> ->>
""".split()
)
