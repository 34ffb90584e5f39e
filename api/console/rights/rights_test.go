package rights

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// docs/console.md says what permissions give: all of it, and nothing else.
func TestGrants(t *testing.T) {
	require.Len(t, rightNames, strings.Count(fmt.Sprintf("%b", all), "1"))
	text, err := os.ReadFile("../../../docs/console.md")
	require.NoError(t, err)
	company, workspace := map[string]Right{}, map[string]Right{}
	into := map[string]map[string]Right{"company": company, "workspace": workspace}
	quoted := regexp.MustCompile("`([^`]+)`")
	for _, m := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\| (company|workspace) \\| ([^|]*) \\|$").FindAllStringSubmatch(string(text), -1) {
		for _, permission := range quoted.FindAllStringSubmatch(m[1], -1) {
			into[m[2]][permission[1]] = parse(t, m[3])
		}
	}
	require.Equal(t, companyGrants, company)
	require.Equal(t, workspaceGrants, workspace)
}

func parse(t *testing.T, text string) (r Right) {
	if text == "everything" {
		return all
	}
	for name := range strings.SplitSeq(text, ", ") {
		i := slices.Index(rightNames, name)
		require.GreaterOrEqual(t, i, 0, "%q is no right", name)
		r |= 1 << i
	}
	return r
}
